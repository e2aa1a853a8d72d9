package driver

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"volplane.dev/volplane/internal/redact"
)

// errOverdue says that a call was killed and has not ended yet.
var errOverdue = errors.New("the driver was killed, but hangs in the kernel")

// keepResult is how long the result of a call that nobody waited for is kept for
// who asks again.
const keepResult = 10 * time.Minute

// Calls keeps calls that work on the same directory or volume apart and joins
// those that ask for the same (H5). A call goes on when its asker's context ends;
// who asks for the same again joins it. The zero Calls is ready, and it is safe
// for concurrent use.
type Calls struct {
	mu sync.Mutex
	// at are the calls by what they work on, also those whose result nobody has
	// seen.
	at map[string]*flight
	// names are the drivers' names of volumes (getvolumename) by driver and
	// volume: attach and detach know one volume by different ones.
	names map[[2]string]string
	// given are the secrets of all calls: a driver may print them in later ones,
	// which carry none.
	given   redact.Secrets
	running sync.WaitGroup
}

// flight is one call.
type flight struct {
	// what tells the call from others on the same object.
	what string
	// done is closed at its end, overdue when it does not come.
	done, overdue chan struct{}
	// waiting is how many wait for its result.
	waiting int
	end     time.Time
	result  any
	err     error
}

// Wait returns when no call is running. No call may be begun meanwhile.
func (c *Calls) Wait() { c.running.Wait() }

// Idle says that no call is running.
func (c *Calls) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.at {
		if f.end.IsZero() {
			return false
		}
	}
	return true
}

// task is what is to be done on an object, which key names.
type task struct {
	key, what string
	// keep says that the result is to be kept when nobody waits for it: for what
	// cannot be seen in the mount table.
	keep bool
	do   func(ctx context.Context, overdue func()) (any, error)
}

// join does a task, or waits for the same one that is being done, after any
// other on the object. The error is the task's, the context's or errOverdue.
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
		if result, over, callErr := c.leave(f, t); over {
			return result, callErr
		}
		if err != nil {
			return nil, err
		}
	}
}

// enter returns the call on the object, which is begun if there is none.
func (c *Calls) enter(ctx context.Context, t task) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.at, func(key string, f *flight) bool {
		return !f.end.IsZero() && (key == t.key && f.what != t.what || time.Since(f.end) >= keepResult)
	})
	f := c.at[t.key]
	if f == nil {
		f = &flight{what: t.what, done: make(chan struct{}), overdue: make(chan struct{})}
		if c.at == nil {
			c.at = map[string]*flight{}
		}
		c.at[t.key] = f
		c.running.Go(func() { c.fly(context.WithoutCancel(ctx), f, t) })
	}
	if f.what == t.what {
		f.waiting++
	}
	return f
}

// leave takes the result of a call that has ended, if it is what t asks for.
func (c *Calls) leave(f *flight, t task) (result any, over bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.what != t.what {
		return nil, false, nil
	}
	f.waiting--
	if f.end.IsZero() {
		return nil, false, nil
	}
	if c.at[t.key] == f {
		delete(c.at, t.key)
	}
	return f.result, true, f.err
}

func (c *Calls) fly(ctx context.Context, f *flight, t task) {
	result, err := t.do(ctx, func() { close(f.overdue) })
	c.mu.Lock()
	defer c.mu.Unlock()
	f.result, f.err, f.end = result, err, time.Now()
	if f.waiting > 0 || !t.keep {
		delete(c.at, t.key)
	}
	close(f.done)
}

// name keeps what the driver calls a volume.
func (c *Calls) name(driver, volume, named string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names == nil {
		c.names = map[[2]string]string{}
	}
	c.names[[2]string{driver, volume}] = named
}

// named returns what the driver calls a volume, as far as it has told.
func (c *Calls) named(driver, volume string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.names[[2]string{driver, volume}]; ok {
		return name
	}
	return volume
}

// forget forgets what the driver calls a volume.
func (c *Calls) forget(driver, named string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.names, func(of [2]string, name string) bool { return of[0] == driver && name == named })
}
