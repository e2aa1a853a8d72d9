package identity

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// askLimit bounds a question to a driver that nothing waits for.
const askLimit = 10 * time.Second

// limits says when the drivers were asked last how many volumes the node
// takes, and which of them have to be asked again.
type limits struct {
	mu     sync.Mutex
	asked  map[string]time.Time
	asking map[string]bool
	full   map[string]bool
}

// isFull notes that an attach failed because the node takes no more volumes of
// a driver.
func (l *limits) isFull(driver string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full[driver] = true
}

// begin says whether to ask a driver now: it is full, or the period that its
// object names is over. A driver is asked by one goroutine at a time.
func (l *limits) begin(driver string, period time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.asked[driver]; !known {
		// It said so when it registered.
		l.asked[driver] = time.Now()
	}
	if l.asking[driver] || !l.full[driver] && (period <= 0 || time.Since(l.asked[driver]) < period) {
		return false
	}
	l.asking[driver], l.asked[driver] = true, time.Now()
	delete(l.full, driver)
	return true
}

func (l *limits) end(driver string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asking, driver)
}

// keepLimits asks drivers again how many volumes the node takes.
func (n *Node) keepLimits(ctx context.Context) {
	tick := time.NewTicker(n.LookEvery)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range n.Drivers.Names() {
			period := time.Duration(ptr.Deref(n.Spec(name).NodeAllocatableUpdatePeriodSeconds, 0)) * time.Second
			if n.limits.begin(name, period) {
				asking.Go(func() {
					defer n.limits.end(name)
					if err := n.askLimits(ctx, name); err != nil && ctx.Err() == nil {
						n.Log.Warn("what the node takes of a driver's volumes stays as it was", "driver", name, "err", err)
					}
				})
			}
		}
	}
}

func (n *Node) askLimits(ctx context.Context, name string) error {
	d, ok := n.Drivers.Get(name)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	return n.object.setLimit(ctx, name, info)
}

// setLimit writes how many volumes of a registered driver the node takes.
func (o *object) setLimit(ctx context.Context, name string, info csi.NodeInfo) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("write limit of driver %s: %w", name, err)
	}
	return o.csiNode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		for i := range drivers {
			if drivers[i].Name == name {
				drivers[i].Allocatable = allocatable(info)
			}
		}
		return drivers
	})
}

// allocatable is nil when a driver names no limit.
func allocatable(info csi.NodeInfo) *storagev1.VolumeNodeResources {
	if info.MaxVolumes <= 0 {
		return nil
	}
	return &storagev1.VolumeNodeResources{Count: ptr.To(int32(min(info.MaxVolumes, math.MaxInt32)))}
}

// dropStale takes the drivers from the Node's objects whose sockets went away
// while no agent ran, once the others have had time to register.
func (n *Node) dropStale(ctx context.Context) {
	pause(ctx, n.SettleAfter)
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := n.dropStaleOnce(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			n.Log.Warn("drivers that are gone stay with the node, will be tried again", "attempt", attempt+1, "err", err)
		}
		pause(ctx, n.RetryMax)
	}
}

func (n *Node) dropStaleOnce(ctx context.Context) error {
	names, err := n.object.drivers(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if n.watcher.Claimed(name) {
			continue
		}
		n.Log.Info("driver went away while no agent ran", "driver", name)
		if err := n.object.Unregister(ctx, name); err != nil {
			return err
		}
		if n.watcher.Claimed(name) {
			// It came just now.
			n.watcher.Again()
		}
	}
	return nil
}

// drivers returns the drivers that the Node's objects name.
func (o *object) drivers(ctx context.Context) ([]string, error) {
	c, err := o.client.StorageV1().CSINodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read CSINode %s: %w", o.name, err)
	}
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", o.name, err)
	}
	all := map[string]bool{}
	for _, d := range c.Spec.Drivers {
		all[d.Name] = true
	}
	ids := map[string]string{}
	if text, ok := node.Annotations[volume.AnnLegacyNodeID]; ok && json.Unmarshal([]byte(text), &ids) == nil {
		for name := range ids {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}
