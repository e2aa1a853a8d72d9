package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/queue"
	"volplane.dev/volplane/internal/volume"
)

const (
	// closingLimit bounds what a controller does last.
	closingLimit = 2 * time.Second
	// turnPatience is how long a key waits for its turn before its owner is told,
	// and turnPause the pause before that is told again.
	turnPatience, turnPause = 10 * time.Second, time.Minute
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

// Env is what a controller is given to work with.
type Env struct {
	// Client writes, and reads live where a cache is not enough. It refuses
	// what the controller has not declared.
	Client kubernetes.Interface
	// Caches are shared by all controllers of the process.
	Caches *kube.Caches
	// Events records reasons.
	Events *kube.Recorder
	// Log carries the controller's name.
	Log *slog.Logger
}

// Declaration is what a controller reads and writes. RBAC roles, the graph in
// ARCHITECTURE.md and the restricted client are all made from it.
type Declaration struct {
	Name    string
	Inputs  []kube.Access
	Outputs []kube.Access
}

// Rights returns everything the controller may ask of the API.
func (d Declaration) Rights() []kube.Access {
	out := append([]kube.Access{kube.Events()}, d.Inputs...)
	return append(out, d.Outputs...)
}

// Result says when to look at a key again without an event.
type Result = queue.Result

// Lane is what calls share whose number is limited, and on whose behalf one is
// made.
type Lane = queue.Lane

// Controller is one running declaration.
type Controller struct {
	Declaration
	// Workers is the number of keys worked on at once; 0 means 1. Those that have
	// entered a lane do not count.
	Workers int
	// Places is how many calls may be under way in each lane; 0 means 1.
	Places int
	// RetryMin and RetryMax bound the pause before a failed key is tried
	// again; the defaults are 50 ms and 5 minutes.
	RetryMin, RetryMax time.Duration
	// Reconcile brings one key one step nearer to what it should be. It must
	// be safe to repeat. An error makes the key come back after a pause.
	Reconcile func(ctx context.Context, key Key) (Result, error)
	// Closing, when set, is called when all workers have stopped. It has a few
	// seconds; what it leaves undone must be safe to leave.
	Closing func(ctx context.Context) error
	// Log receives the errors.
	Log *slog.Logger

	once  sync.Once
	queue *queue.Queue[Key]
}

// Add asks for a key to be reconciled soon. It may be called before Run and
// from any goroutine.
func (c *Controller) Add(k Key) { c.init(); c.queue.Add(k) }

// AddAfter asks for a key to be reconciled after a pause.
func (c *Controller) AddAfter(k Key, d time.Duration) { c.init(); c.queue.AddAfter(k, d) }

func (c *Controller) init() {
	c.once.Do(func() {
		c.queue = queue.New(queue.Options[Key]{
			Process: func(ctx context.Context, k Key) (Result, error) { return c.Reconcile(ctx, k) },
			Workers: c.Workers, Lanes: queue.Limit{Places: c.Places},
			Retry: queue.Backoff{Min: c.RetryMin, Max: c.RetryMax}, Log: c.Log,
			// A conflict only says that the facts were old, which is no news to anybody.
			Silent: apierrors.IsConflict,
		})
	})
}

// Turn is asked by Reconcile before it calls a driver. If it is not the key's
// turn, Reconcile returns with the pause after which to look again at the latest,
// and is called again when it is; tell is called when that takes long. Otherwise,
// with 0, the key has a place until Reconcile returns. The pauses of a key that
// has failed go on growing when it has waited in between.
func (c *Controller) Turn(k Key, lane Lane, tell func(volume.Because)) (pause time.Duration) {
	c.init()
	ok, waited := c.queue.Enter(k, lane)
	switch {
	case ok:
		return 0
	case waited < turnPatience:
		return turnPatience - waited
	}
	tell(busy(lane))
	return turnPause
}

// Run works on keys until ctx ends, and returns when all workers have stopped.
// The caches must have been started.
func (c *Controller) Run(ctx context.Context) error {
	c.init()
	c.queue.Run(ctx)
	if c.Closing == nil {
		return nil
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingLimit)
	defer cancel()
	return c.Closing(closing)
}

// busy explains why a call is not made yet, in the same words to all that wait.
func busy(l Lane) volume.Because {
	return volume.Because{
		Reason: volume.ReasonDriverBusy, Next: l.Driver,
		Message: "driver " + l.Driver + " works on as many calls to " + l.Call +
			" volumes as may be under way at once; this one waits for its turn",
	}
}
