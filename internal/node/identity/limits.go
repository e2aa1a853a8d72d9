package identity

import (
	"context"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
)

// askLimit bounds a question to a driver that nothing waits for.
const askLimit = 10 * time.Second

// limits says when the drivers were asked last how many volumes the node
// takes, and which of them have to be asked again.
type limits struct {
	object  *object
	drivers *csi.Set
	spec    func(driver string) storagev1.CSIDriverSpec

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

// keep asks drivers again how many volumes the node takes.
func (l *limits) keep(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, name := range l.drivers.Names() {
			period := time.Duration(ptr.Deref(l.spec(name).NodeAllocatableUpdatePeriodSeconds, 0)) * time.Second
			if l.begin(name, period) {
				asking.Go(func() {
					defer l.end(name)
					if err := l.ask(ctx, name); err != nil && ctx.Err() == nil {
						l.object.log.Warn("what the node takes of a driver's volumes stays as it was", "driver", name, "err", err)
					}
				})
			}
		}
	}
}

func (l *limits) ask(ctx context.Context, name string) error {
	d, ok := l.drivers.Get(name)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	return l.object.setLimit(ctx, name, info)
}
