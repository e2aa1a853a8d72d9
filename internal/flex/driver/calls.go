package driver

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"volplane.dev/volplane/internal/process/redact"
)

// errOverdue says that a call was killed but its process has not ended.
var errOverdue = errors.New("the driver was killed, but hangs in the kernel")

// keepResult is how long the result of a call is kept if no caller has waited for it, in case
// the same call is repeated.
const keepResult = 10 * time.Minute

// Calls serializes calls for the same directory or volume, and joins identical ones (H5). A call
// continues when the context of its caller ends; a repeated call joins it. The zero value is ready
// for use. It is safe for concurrent use.
type Calls struct {
	mu sync.Mutex
	// flights holds the calls by object, including those whose result no caller has received yet.
	flights map[string]*flight
	// names holds the drivers' names of volumes (getvolumename), by driver and volume: attach and
	// detach call one volume by different names.
	names map[[2]string]string
	// secrets holds the secrets of all calls: a driver may print them in later calls, which carry
	// none.
	secrets redact.Secrets
	running sync.WaitGroup
}

// flight is one call in flight, or its result.
type flight struct {
	// what distinguishes the call from other calls for the same object.
	what string
	// done is closed at the end of the call, overdue when the killed process does not end.
	done, overdue chan struct{}
	// waiting is the number of goroutines that wait for the result.
	waiting int
	end     time.Time
	result  any
	err     error
}

// Wait waits until no call is in flight. No call may be started while it waits.
func (c *Calls) Wait() { c.running.Wait() }

// Idle says whether no call is in flight.
func (c *Calls) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flights {
		if f.end.IsZero() {
			return false
		}
	}
	return true
}

// task is something to be done for the object that key names.
type task struct {
	key, what string
	// keep says that the result is kept for a repeated call if no caller waits for it: it is set
	// for effects that the mount table does not show.
	keep bool
	do   func(ctx context.Context, overdue func()) (any, error)
}

// join does a task after all others for its object, or waits for the same one if it is in flight.
// The error is the task's, the context's, or errOverdue.
func (c *Calls) join(ctx context.Context, t task) (any, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f := c.enter(ctx, t)
		var err error
		select {
		case <-f.done:
		case <-f.overdue:
			err = errOverdue
		case <-ctx.Done():
			err = ctx.Err()
		}
		if result, over, callErr := c.result(f, t); over {
			return result, callErr
		}
		if err != nil {
			return nil, err
		}
	}
}

// enter returns the call in flight for the task's object. If there is none, it starts the task.
func (c *Calls) enter(ctx context.Context, t task) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.flights, func(key string, f *flight) bool {
		return !f.end.IsZero() && (key == t.key && f.what != t.what || time.Since(f.end) >= keepResult)
	})
	f := c.flights[t.key]
	if f == nil {
		f = &flight{what: t.what, done: make(chan struct{}), overdue: make(chan struct{})}
		if c.flights == nil {
			c.flights = map[string]*flight{}
		}
		c.flights[t.key] = f
		c.running.Go(func() { c.run(context.WithoutCancel(ctx), f, t) })
	}
	if f.what == t.what {
		f.waiting++
	}
	return f
}

// result returns the result of a call that has ended, if the call is the same as t.
func (c *Calls) result(f *flight, t task) (result any, over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.what != t.what {
		return nil, false, nil
	}
	f.waiting--
	if f.end.IsZero() {
		return nil, false, nil
	}
	if c.flights[t.key] == f {
		delete(c.flights, t.key)
	}
	return f.result, true, f.err
}

func (c *Calls) run(ctx context.Context, f *flight, t task) {
	result, err := t.do(ctx, func() { close(f.overdue) })
	c.mu.Lock()
	defer c.mu.Unlock()
	f.result, f.err, f.end = result, err, time.Now()
	if f.waiting > 0 || !t.keep {
		delete(c.flights, t.key)
	}
	close(f.done)
}

// setName stores the driver's name of a volume.
func (c *Calls) setName(driver, volume, named string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names == nil {
		c.names = map[[2]string]string{}
	}
	c.names[[2]string{driver, volume}] = named
}

// nameOf returns the driver's name of a volume, if it is known, otherwise the volume's own.
func (c *Calls) nameOf(driver, volume string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.names[[2]string{driver, volume}]; ok {
		return name
	}
	return volume
}

// forget removes the driver's name of a volume.
func (c *Calls) forget(driver, named string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.names, func(of [2]string, name string) bool { return of[0] == driver && name == named })
}
