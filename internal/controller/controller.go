package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

const (
	// closeTimeout bounds a call of Controller.Close.
	closeTimeout = 2 * time.Second
	// laneWaitReported is how long a key waits for a place in a lane before an event reports it, and laneWaitPause the
	// pause until the event is repeated.
	laneWaitReported, laneWaitPause = 10 * time.Second, time.Minute
)

// Key names one object that a controller works on.
type Key struct{ Kind, Namespace, Name string }

// String returns the key as it appears in logs.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + "/" + k.Name
	}
	return k.Kind + "/" + k.Namespace + "/" + k.Name
}

// Pace is a user's choice for a controller. Zero values leave the controller's own.
type Pace struct {
	// RetryMin and RetryMax bound the back-off of a key after errors.
	RetryMin, RetryMax time.Duration
	// Workers is the number of keys that are reconciled at the same time, and that of the calls in flight in each lane.
	// One namespace may use all of them: the user has configured what the driver can bear.
	Workers int
}

// Retry returns the back-off with the user's choice applied.
func (p Pace) Retry(own queue.Backoff) queue.Backoff {
	own.Max = cmp.Or(p.RetryMax, own.Max)
	own.Min = cmp.Or(p.RetryMin, own.Min)
	if own.Max > 0 {
		own.Min = min(own.Min, own.Max)
	}
	return own
}

// Env holds the dependencies that every controller has.
type Env struct {
	// Client sends the controller's writes, and the reads that must not come from a cache. It
	// refuses requests that the controller has not declared.
	Client kubernetes.Interface
	// Caches holds the objects of the cluster. All controllers of the process share it.
	Caches *kube.Caches
	// Events records events.
	Events *kube.Recorder
	// Pace is what the user has chosen for the controller.
	Pace Pace
	// Log is a logger that adds the controller's name to each line.
	Log *slog.Logger
}

// Declaration lists what a controller reads and writes. The RBAC roles, the graph in
// docs/reference/rights.md and the restricted client are derived from it.
type Declaration struct {
	Name    string
	Inputs  []kube.Access
	Outputs []kube.Access
}

// Rights returns all requests that the controller may send to the API server.
func (d Declaration) Rights() []kube.Access {
	out := append([]kube.Access{kube.Events()}, d.Inputs...)
	return append(out, d.Outputs...)
}

// Result says when a key is reconciled again without being added.
type Result = queue.Result

// Lane names a driver and a kind of call, which together have a limited number of calls in flight, and the namespace on
// whose behalf a call is made.
type Lane = queue.Lane

// Controller runs Reconcile for keys.
type Controller struct {
	Declaration
	// Workers is the number of keys that are reconciled at the same time; 0 means 1. Keys that hold a place in a lane do
	// not count.
	Workers int
	// Places is the number of calls that may be in flight in each lane; 0 means 1.
	Places int
	// RetryMin and RetryMax bound the back-off of a key after errors; the defaults are 50 ms and 5 minutes.
	RetryMin, RetryMax time.Duration
	// Pace overrides the fields above, as far as the user has set it.
	Pace Pace
	// Reconcile does the next step for a key. It must be safe to repeat. After an error the key is requeued with back-off.
	Reconcile func(ctx context.Context, key Key) (Result, error)
	// Close, if set, is called after all workers have stopped. Its context ends after a few
	// seconds, so its work must be safe to leave undone.
	Close func(ctx context.Context) error
	// Log receives the errors of Reconcile.
	Log *slog.Logger

	once    sync.Once
	queue   *queue.Queue[Key]
	lasting lasting
}

// Add queues a key. It may be called before Run and by any goroutine.
func (c *Controller) Add(k Key) { c.init(); c.queue.Add(k) }

// AddAfter queues a key after a pause.
func (c *Controller) AddAfter(k Key, d time.Duration) { c.init(); c.queue.AddAfter(k, d) }

func (c *Controller) init() {
	c.once.Do(func() {
		c.queue = queue.New(queue.Options[Key]{
			Process: func(ctx context.Context, k Key) (Result, error) {
				defer c.lasting.forget(k)
				return c.Reconcile(ctx, k)
			},
			Workers: cmp.Or(c.Pace.Workers, c.Workers),
			Lanes: queue.Limit{
				Places: cmp.Or(c.Pace.Workers, c.Places), Undivided: c.Pace.Workers > 0, Firm: c.Pace.Workers > 0,
			},
			Retry: c.Pace.Retry(queue.Backoff{Min: c.RetryMin, Max: c.RetryMax}), Log: c.Log,
			Held: func(err error) bool { return errors.Is(err, csi.ErrHeld) },
			// A conflict only means that the facts were outdated. It is normal and not worth a log line. Answers of drivers are
			// in the log already.
			Silent: func(err error) bool { return apierrors.IsConflict(err) || csi.IsAnswer(err) },
		})
	})
}

// Enter is called by Reconcile before it calls a driver. If it returns 0, the key holds a place in
// the lane until Reconcile returns, or has held it for long. Otherwise Reconcile must return without
// calling the driver, with the pause as Result.After; it is called again as soon as a place is free. Enter calls report
// if the key has waited for long. Waiting does not reset the back-off of a key that has failed.
func (c *Controller) Enter(k Key, lane Lane, report func(volume.Because)) (pause time.Duration) {
	c.init()
	ok, waited := c.queue.Enter(k, lane)
	switch {
	case ok:
		return 0
	case waited < laneWaitReported:
		return laneWaitReported - waited
	}
	report(busy(lane))
	return laneWaitPause
}

// Measure reports to a meter what becomes of keys. It must be called before Run.
func (c *Controller) Measure(m queue.Meter[Key]) { c.init(); c.queue.Measure(m) }

// Load returns the load of a measured controller.
func (c *Controller) Load() queue.Load { c.init(); return c.queue.Load() }

// Latest returns the state of an object after a change: after, or before if it was deleted.
func Latest[T any](before, after *T) *T { return cmp.Or(after, before) }

// Try is called by Reconcile for the key that is being reconciled. It returns the try that fails now, and when the next
// one is.
func (c *Controller) Try(k Key) retry.Try {
	c.init()
	number, pause := c.queue.Attempt(k)
	return retry.Try{Number: number, Next: time.Now().Add(pause)}
}

// TriedWithin is Try for an event that is not written after each failure: it only has the longest pause.
func (c *Controller) TriedWithin() retry.Try {
	c.init()
	return retry.Try{Within: c.queue.LongestPause()}
}

// Run reconciles keys until ctx ends, and returns when all workers have stopped. The caches must have been started.
func (c *Controller) Run(ctx context.Context) error {
	c.init()
	c.queue.Run(ctx)
	if c.Close == nil {
		return nil
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return c.Close(closing)
}

// busy explains why a call waits. All keys that wait in a lane get the same words, so that their events are alike.
func busy(l Lane) volume.Because {
	return volume.Say(volume.ReasonDriverBusy, volume.Driver(l.Driver), "driver "+l.Driver+
		" has reached its limit of concurrent "+l.Call+" calls; waiting for a slot")
}

// tellAfter is how long a state that most objects leave within milliseconds has to last until it is worth a write.
const tellAfter = time.Second

// lasting remembers since when keys have been in such a state.
type lasting struct {
	mu    sync.Mutex
	since map[Key]stay
}

// stay is a state and the time at which it began. asked means that Reconcile has called Lasts for it.
type stay struct {
	reason volume.Reason
	begin  time.Time
	asked  bool
}

// Lasts is called by Reconcile for a key whose object is in a state that most objects leave within milliseconds. It
// returns how much longer the state must last to be worth an event or another write: 0 means that it is. Otherwise
// nothing should be written, and Reconcile should return the pause as Result.After. A state that Reconcile does not ask
// about the next time is over.
func (c *Controller) Lasts(k Key, r volume.Reason) (pause time.Duration) {
	l := &c.lasting
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.since[k]
	if !known || s.reason != r {
		s = stay{reason: r, begin: time.Now()}
	}
	if pause = tellAfter - time.Since(s.begin); pause <= 0 {
		delete(l.since, k)
		return 0
	}
	if l.since == nil {
		l.since = map[Key]stay{}
	}
	s.asked = true
	l.since[k] = s
	return pause
}

// forget ends the state of a key that has just been reconciled, unless it was asked about.
func (l *lasting) forget(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.since[k]
	switch {
	case known && s.asked:
		s.asked = false
		l.since[k] = s
	case known:
		delete(l.since, k)
	}
}
