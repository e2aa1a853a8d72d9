package progress_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"volplane.dev/volplane/standalone/progress"
)

var errBroken = errors.New("broken")

// TestWait: a state that changes is waited for however long it takes, one that does not change is given up, and
// everything else ends the wait immediately.
func TestWait(t *testing.T) {
	const limit = time.Minute
	after := func(d time.Duration, err error) func(time.Time) (bool, error) {
		return func(begin time.Time) (bool, error) {
			if time.Since(begin) < d {
				return false, nil
			}
			return err == nil, err
		}
	}
	each := func(pause time.Duration, until time.Duration) func(time.Time) string {
		return func(begin time.Time) string {
			return strconv.Itoa(int(min(time.Since(begin), until) / pause))
		}
	}
	for name, c := range map[string]struct {
		state  func(time.Time) string
		done   func(time.Time) (bool, error)
		cancel time.Duration
		want   error
		least  time.Duration
		most   time.Duration
	}{
		"slow but moving": {each(50*time.Second, time.Hour), after(10*time.Minute, nil), time.Hour, nil, 10 * time.Minute, 10*
			time.Minute + time.Second},
		"never moves": {
			each(time.Hour, time.Hour), after(time.Hour, nil), time.Hour, progress.ErrStalled, limit, limit + time.Second,
		},
		"moves no more": {
			each(time.Second, 3*time.Minute), after(time.Hour, nil), time.Hour, progress.ErrStalled, 3 * time.Minute,
			4*time.Minute + 2*time.Second,
		},
		"fails": {
			each(time.Second, time.Hour), after(time.Second, errBroken), time.Hour, errBroken, time.Second, 2 * time.Second,
		},
		"is asked to end": {
			each(time.Second, time.Hour), after(time.Hour, nil), 5 * time.Second, context.Canceled, 5 * time.Second,
			6 * time.Second,
		},
		"is there at once":    {each(time.Second, time.Hour), after(0, nil), time.Hour, nil, 0, 0},
		"is asked beforehand": {each(time.Second, time.Hour), after(time.Hour, nil), 0, context.Canceled, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stop := time.AfterFunc(c.cancel, cancel)
				defer stop.Stop()
				begin := time.Now()
				err := progress.Wait(ctx, limit, func() string { return c.state(begin) },
					func() (bool, error) { return c.done(begin) })
				if took := time.Since(begin); !errors.Is(err, c.want) || took < c.least || took > c.most {
					t.Errorf("%v after %s; want %v after %s", err, took, c.want, c.least)
				}
			})
		})
	}
}
