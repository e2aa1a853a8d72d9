package driver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// job is a task that takes a time and counts itself.
func job(key, what string, keep bool, took time.Duration, runs *atomic.Int32) task {
	return task{key: key, what: what, keep: keep, do: func(ctx context.Context, _ func()) (any, error) {
		n := runs.Add(1)
		select {
		case <-time.After(took):
			return n, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

// TestCallsJoin: an identical call gets the same result, another call for the same object
// waits, and a call for another object does not (H5).
func TestCallsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var mounts, unmounts, others atomic.Int32
		var wg sync.WaitGroup
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				if n, err := c.join(t.Context(), job("a", "mount", false, time.Minute, &mounts)); err != nil || n != int32(1) {
					t.Error(n, err)
				}
			})
		}
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				if n, err := c.join(t.Context(), job("a", "unmount", false, time.Minute, &unmounts)); err != nil || n != int32(1) {
					t.Error(n, err)
				}
				if took := time.Since(began); took != 2*time.Minute {
					t.Errorf("unmount ended after %s", took)
				}
			})
		}
		if _, err := c.join(t.Context(), job("b", "mount", false, time.Second, &others)); err != nil ||
			time.Since(began) != time.Second {
			t.Error("another object waited", err)
		}
		wg.Wait()
		c.Wait()
		if len(c.flights) > 0 {
			t.Errorf("left: %v", c.flights)
		}
	})
}

// TestCallsGoOn: a call survives its caller; a repeated call gets its result, even after
// it has ended, once.
func TestCallsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var runs, others atomic.Int32
		attach := job("a", "attach", true, time.Minute, &runs)
		for range 3 {
			if _, err := c.askFor(t, time.Second, attach); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if _, err := c.askFor(t, time.Second,
			job("a", "detach", true, 0, &others)); !errors.Is(err, context.DeadlineExceeded) || others.Load() != 0 {
			t.Errorf("detach beside attach: %v", err)
		}
		c.Wait()
		if n, err := c.askFor(t, time.Second, attach); err != nil || n != int32(1) {
			t.Errorf("the result is lost: %v, %v", n, err)
		}
		if n, err := c.askFor(t, time.Hour, attach); err != nil || n != int32(2) {
			t.Errorf("the result is given twice: %v, %v", n, err)
		}
	})
}

// askFor asks for a time.
func (c *Calls) askFor(t *testing.T, limit time.Duration, k task) (any, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return c.join(ctx, k)
}

// TestCallsForget: a result is of no use when something else was done with the
// object since, when it is old, or when the mount table knows better.
func TestCallsForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var runs, others atomic.Int32
		attach := job("a", "attach", true, time.Minute, &runs)
		_, _ = c.askFor(t, time.Second, attach)
		c.Wait()
		if _, err := c.askFor(t, time.Second, job("a", "detach", true, 0, &others)); err != nil {
			t.Error(err)
		}
		if n, err := c.askFor(t, time.Hour, attach); err != nil || n != int32(2) {
			t.Errorf("after detach: %v, %v", n, err)
		}
		_, _ = c.askFor(t, time.Second, attach)
		c.Wait()
		<-time.After(keepResult)
		_, _ = c.askFor(t, time.Second, job("b", "mount", false, time.Minute, &others))
		c.Wait()
		if len(c.flights) > 0 {
			t.Errorf("left: %v", c.flights)
		}
		if n, err := c.askFor(t, time.Hour, attach); err != nil || n != int32(4) {
			t.Errorf("much later: %v, %v", n, err)
		}
	})
}

// TestCallsOverdue: no caller waits for a process that even SIGKILL does not end, and no
// other call runs beside it.
func TestCallsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		var runs atomic.Int32
		end := make(chan struct{})
		stuck := task{key: "a", what: "mount", do: func(_ context.Context, overdue func()) (any, error) {
			overdue()
			<-end
			return nil, nil
		}}
		for _, k := range []task{stuck, stuck, job("a", "unmount", false, 0, &runs)} {
			if _, err := c.join(t.Context(), k); !errors.Is(err, errOverdue) {
				t.Error(err)
			}
		}
		if runs.Load() > 0 {
			t.Error("two at once")
		}
		close(end)
		c.Wait()
		if _, err := c.join(t.Context(), job("a", "unmount", false, 0, &runs)); err != nil {
			t.Error(err)
		}
	})
}

func TestCallsNames(t *testing.T) {
	var c Calls
	c.setName("d", "pv", "pool~1")
	if got := c.nameOf("d", "pv"); got != "pool~1" {
		t.Error(got)
	}
	if got := c.nameOf("e", "pv"); got != "pv" {
		t.Error(got)
	}
	c.forget("d", "pool~1")
	if got := c.nameOf("d", "pv"); got != "pv" {
		t.Error(got)
	}
}
