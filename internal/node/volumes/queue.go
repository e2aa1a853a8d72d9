package volumes

import (
	"context"
	"errors"
	"time"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/queue"
)

// DriverLimit is how many volumes of one driver are processed at once, those not counted whose calls hang. The queue
// bounds these as well, so a driver that hangs holds a limited number of goroutines and nothing else.
const DriverLimit = 16

// busyAfter is how long a volume waits for a place until its Pods say so.
const busyAfter = 5 * time.Second

// newQueue returns the queue of volumes. A volume is processed as soon as its driver has a free place.
func (v *Volumes) newQueue() *queue.Queue[string] {
	return queue.New(queue.Options[string]{
		Process: v.process,
		Lanes:   queue.Limit{Places: DriverLimit, Undivided: true},
		Retry:   queue.Backoff{Min: v.RetryMin, Max: v.RetryMax},
		Poll:    queue.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second},
		Held:    func(err error) bool { return errors.Is(err, kube.ErrHeld) },
		Noun:    "volume", Log: v.Log, Silent: csi.IsAnswer,
	})
}

// process reconciles a volume if its driver has a free place; otherwise the queue adds it again.
func (v *Volumes) process(ctx context.Context, key string) (queue.Result, error) {
	switch ok, waited := v.queue.Enter(key, queue.Lane{Driver: uses.DriverOf(key)}); {
	case ok:
	case waited < busyAfter:
		return queue.Result{After: busyAfter - waited}, nil
	default:
		v.setBusy(key)
		return queue.Result{}, nil
	}
	err := v.reconcile(ctx, key)
	if errors.Is(err, errNotYet) {
		v.Log.Debug("volume waits", "volume", key, "for", err)
		return queue.Result{Poll: true}, nil
	}
	return queue.Result{}, err
}
