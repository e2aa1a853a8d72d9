package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"volplane.dev/volplane/internal/node/uses"
)

// DriverLimit is how many volumes of one driver are worked on at once. A
// driver that hangs holds that many goroutines and nothing else.
const DriverLimit = 16

// dispatcher works on volumes: one goroutine for a volume, in order; volumes
// side by side.
type dispatcher struct {
	queue workqueue.TypedRateLimitingInterface[string]
	do    func(ctx context.Context, key string) error
	// soon paces the looks at what is not there yet.
	soon workqueue.TypedRateLimiter[string]
	log  *slog.Logger

	mu      sync.Mutex
	running map[string]int
	// parked are the volumes that wait because their driver is busy.
	parked map[string][]string
}

func newDispatcher(
	shortest, longest time.Duration, do func(context.Context, string) error, log *slog.Logger,
) *dispatcher {
	return &dispatcher{
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](shortest, longest)),
		soon: workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 10*time.Second),
		do:   do, log: log, running: map[string]int{}, parked: map[string][]string{},
	}
}

func (d *dispatcher) add(key string) {
	if key != "" {
		d.queue.Add(key)
	}
}

func (d *dispatcher) addAfter(key string, wait time.Duration) { d.queue.AddAfter(key, wait) }

func (d *dispatcher) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, d.queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	defer workers.Wait()
	for {
		key, closed := d.queue.Get()
		if closed {
			return
		}
		if !d.enter(key) {
			d.queue.Done(key)
			continue
		}
		workers.Go(func() {
			defer d.leave(key)
			defer d.queue.Done(key)
			d.one(ctx, key)
		})
	}
}

// enter takes a place at the volume's driver, or parks the volume.
func (d *dispatcher) enter(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	driver := uses.DriverOf(key)
	if d.running[driver] < DriverLimit {
		d.running[driver]++
		return true
	}
	if !slices.Contains(d.parked[driver], key) {
		d.parked[driver] = append(d.parked[driver], key)
	}
	return false
}

func (d *dispatcher) leave(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	driver := uses.DriverOf(key)
	d.running[driver]--
	if waiting := d.parked[driver]; len(waiting) > 0 {
		d.parked[driver] = waiting[1:]
		d.queue.Add(waiting[0])
	}
}

func (d *dispatcher) one(ctx context.Context, key string) {
	err := d.safely(ctx, key)
	switch {
	case err == nil:
		d.queue.Forget(key)
		d.soon.Forget(key)
	case errors.Is(err, errNotYet):
		d.log.Debug("volume waits", "volume", key, "for", err)
		d.queue.AddAfter(key, d.soon.When(key))
	case ctx.Err() == nil:
		d.log.Warn("volume cannot be brought on, will be tried again", "volume", key, "attempt",
			d.queue.NumRequeues(key)+1, "err", err)
		d.queue.AddRateLimited(key)
	}
}

// safely keeps one poisonous volume from taking all others down with it
// (CVE-2020-8569).
func (d *dispatcher) safely(ctx context.Context, key string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			d.log.Error("panic", "volume", key, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic while working on volume %s: %v", key, r)
		}
	}()
	return d.do(ctx, key)
}
