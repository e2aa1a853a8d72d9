package identity

import (
	"context"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
)

// askTimeout bounds a call of a driver for its limit.
const askTimeout = 10 * time.Second

// limits reads drivers' attach limits again, when their period is over or an attach has failed because
// of one.
type limits struct {
	object  *object
	drivers *csi.Set
	spec    func(driver string) storagev1.CSIDriverSpec

	mu sync.Mutex
	// asked is the time of the last call, by driver.
	asked map[string]time.Time
	// asking are the drivers whose call is in flight.
	asking map[string]bool
	// full are the drivers for which an attach has failed since the last call.
	full map[string]bool
}

// setFull says that an attach failed because of a driver's limit.
func (l *limits) setFull(driver string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.full[driver] = true
}

// start says whether to ask a driver now: an attach has failed, or the period of its CSIDriver object
// is over. A driver is asked by one goroutine at a time.
func (l *limits) start(driver string, period time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.asked[driver]; !known {
		// Its registration has read the limit.
		l.asked[driver] = time.Now()
	}
	if l.asking[driver] || !l.full[driver] && (period <= 0 || time.Since(l.asked[driver]) < period) {
		return false
	}
	l.asking[driver], l.asked[driver] = true, time.Now()
	delete(l.full, driver)
	return true
}

func (l *limits) finish(driver string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asking, driver)
}

// run reads drivers' limits until ctx ends.
func (l *limits) run(ctx context.Context, every time.Duration) {
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
			if l.start(name, period) {
				asking.Go(func() {
					defer l.finish(name)
					if err := l.ask(ctx, name); err != nil && ctx.Err() == nil {
						l.object.log.Warn("attach limit of driver cannot be read again, the old one is kept", "driver", name, "err", err)
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
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	return l.object.setLimit(ctx, name, info)
}
