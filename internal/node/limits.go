package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// askLimit bounds a question to a driver that nothing waits for.
const askLimit = 10 * time.Second

// limits knows when the drivers were asked last how many volumes the node
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
func (a *Agent) keepLimits(ctx context.Context) {
	tick := time.NewTicker(a.LookEvery)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range a.Drivers.Names() {
			period := time.Duration(ptr.Deref(a.driverSpec(name).NodeAllocatableUpdatePeriodSeconds, 0)) * time.Second
			if a.limits.begin(name, period) {
				asking.Go(func() {
					defer a.limits.end(name)
					if err := a.askLimits(ctx, name); err != nil && ctx.Err() == nil {
						a.Log.Warn("what the node takes of a driver's volumes stays as it was", "driver", name, "err", err)
					}
				})
			}
		}
	}
}

func (a *Agent) askLimits(ctx context.Context, name string) error {
	d, ok := a.Drivers.Get(name)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	return a.object.setLimit(ctx, name, info)
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

// awaitAttach has a volume that is not attached yet looked at again, since the
// node is not told of an attach that fails: when it failed because there are
// too many, the driver is asked how many there may be.
func (a *Agent) awaitAttach(ctx context.Context, f *facts, before volume.Because) error {
	a.work.addAfter(volume.Key(f.Driver, f.Handle), a.LookEvery)
	if before.Reason != volume.ReasonWaitForAttach {
		return nil
	}
	va, err := a.Client.StorageV1().VolumeAttachments().Get(ctx, attach.NameOf(f.Driver, f.Handle, f.Node), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("read attachment of volume %s: %w", f.Volume, err)
	}
	e := va.Status.AttachError
	if e == nil || codes.Code(ptr.Deref(e.ErrorCode, 0)) != codes.ResourceExhausted { //nolint:gosec // gRPC's codes are small
		return nil
	}
	a.limits.isFull(f.Driver)
	if a.driverSpec(f.Driver).NodeAllocatableUpdatePeriodSeconds == nil {
		return nil
	}
	return a.giveUp(ctx, f, decide.Full(f.Volume, f.Driver, f.Node, e.Message))
}

// giveUp ends the Pods that wait for a volume for which the node has no room, as
// a kubelet does, so that whoever made them can have others elsewhere. A Pod
// that has the volume, or had all of its own, may be running and is left alone.
func (a *Agent) giveUp(ctx context.Context, f *facts, b volume.Because) error {
	var failed []error
	for path, pod := range f.consumers {
		if c := uses.Mounted(pod); f.Record.Target(path) != nil || c != nil && c.Status == corev1.ConditionTrue {
			continue
		}
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status": map[string]any{
				"phase": corev1.PodFailed, "reason": b.Reason, "message": b.Message, "conditions": []corev1.PodCondition{{
					Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse, Reason: string(b.Reason), Message: b.Message, LastTransitionTime: metav1.Now(),
				}},
			},
		})
		if err != nil {
			return fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err)
		}
		written, err := a.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			failed = append(failed, fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err))
		default:
			a.pods.Wrote(written)
			a.Events.Warn(pod, b)
		}
	}
	return errors.Join(failed...)
}

// dropStale takes the drivers from the Node's objects whose sockets went away
// while no agent ran, once the others have had time to register.
func (a *Agent) dropStale(ctx context.Context) {
	pause(ctx, a.SettleAfter)
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := a.dropStaleOnce(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			a.Log.Warn("drivers that are gone stay with the node, will be tried again", "attempt", attempt+1, "err", err)
		}
		pause(ctx, a.RetryMax)
	}
}

func (a *Agent) dropStaleOnce(ctx context.Context) error {
	names, err := a.object.drivers(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if a.watcher.Claimed(name) {
			continue
		}
		a.Log.Info("driver went away while no agent ran", "driver", name)
		if err := a.object.Unregister(ctx, name); err != nil {
			return err
		}
		if a.watcher.Claimed(name) {
			// It came just now.
			a.watcher.Again()
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
