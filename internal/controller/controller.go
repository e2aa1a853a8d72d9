package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/kube"
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

// Result says when to look at a key again without an event; zero is never.
type Result struct{ After time.Duration }

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
	queue *queue
	lanes *lanes
}

// Add asks for a key to be reconciled soon. It may be called before Run and
// from any goroutine.
func (c *Controller) Add(k Key) { c.init(); c.queue.add(k) }

// AddAfter asks for a key to be reconciled after a pause.
func (c *Controller) AddAfter(k Key, d time.Duration) { c.init(); c.queue.addAfter(k, d) }

func (c *Controller) init() {
	c.once.Do(func() {
		c.queue = &queue{shortest: cmp.Or(c.RetryMin, 50*time.Millisecond), longest: cmp.Or(c.RetryMax, 5*time.Minute)}
		c.lanes = &lanes{places: max(c.Places, 1), wake: c.queue.add}
	})
}

// Turn is asked by Reconcile before it calls a driver. If it is not the key's
// turn, Reconcile returns with the pause after which to look again at the latest,
// and is called again when it is; tell is called when that takes long. Otherwise,
// with 0, the key has a place until Reconcile returns. The pauses of a key that
// has failed go on growing when it has waited in between.
func (c *Controller) Turn(k Key, lane Lane, tell func(volume.Because)) (pause time.Duration) {
	c.init()
	ok, waited := c.lanes.enter(k, lane)
	switch {
	case ok:
		c.queue.apart(k)
		return 0
	case waited < turnPatience:
		return turnPatience - waited
	}
	tell(lane.busy())
	return turnPause
}

// Run works on keys until ctx ends, and returns when all workers have stopped.
// The caches must have been started.
func (c *Controller) Run(ctx context.Context) error {
	c.init()
	c.queue.start(max(c.Workers, 1), func(key Key) { c.work(ctx, key) })
	<-ctx.Done()
	c.queue.stop()
	if c.Closing == nil {
		return nil
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingLimit)
	defer cancel()
	return c.Closing(closing)
}

func (c *Controller) work(ctx context.Context, key Key) {
	c.lanes.begin(key)
	result, err := c.safely(ctx, key)
	waits := c.lanes.end(key)
	switch {
	case err == nil:
		if !waits {
			c.queue.went(key)
		}
		c.later(key, result.After, waits)
	case ctx.Err() != nil:
	default:
		attempt := c.queue.failed(key)
		// A conflict only says that the facts were old; it is no news to
		// anybody.
		if !apierrors.IsConflict(err) {
			c.Log.Warn("reconcile failed, will be repeated", "key", key.String(), "attempt", attempt, "err", err)
		}
	}
}

// later has a key come back after a pause; waits says that it is only for its
// turn.
func (c *Controller) later(key Key, pause time.Duration, waits bool) {
	switch {
	case pause <= 0:
	case waits:
		c.queue.addPatience(key, pause)
	default:
		c.queue.addAfter(key, pause)
	}
}

var errPanic = errors.New("panic in reconcile")

// safely keeps one poisonous object from taking all others down with it
// (CVE-2020-8569).
func (c *Controller) safely(ctx context.Context, key Key) (result Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.Log.Error("panic", "key", key.String(), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w of %s: %v", errPanic, key, r)
		}
	}()
	return c.Reconcile(ctx, key)
}
