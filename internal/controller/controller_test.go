package controller

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"volplane.dev/volplane/internal/process/queue"
)

// pass lets time pass, on the test's clock only.
func pass(d time.Duration) { <-time.After(d) }

func run(t *testing.T, c *Controller) {
	t.Helper()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestFailedKeyComesBackLaterAndLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		done := make(chan struct{})
		c := &Controller{RetryMin: time.Second, RetryMax: 3 * time.Second}
		c.Reconcile = func(context.Context, Key) (Result, error) {
			at = append(at, time.Since(begin).Round(time.Second))
			if len(at) < 5 {
				return Result{}, errors.New("not yet")
			}
			close(done)
			return Result{}, nil
		}
		run(t, c)
		c.Add(Key{Kind: "claim", Name: "a"})
		<-done
		want := []time.Duration{0, 1, 3, 6, 9}
		for i := range want {
			if at[i] != want[i]*time.Second {
				t.Fatalf("tries at %v, want seconds %v", at, want)
			}
		}
	})
}

// TestPace: a user's choice overrides that of the controller's author.
func TestPace(t *testing.T) {
	own := queue.Backoff{Min: time.Second, Max: time.Minute}
	for _, c := range []struct {
		pace Pace
		want queue.Backoff
	}{
		{Pace{}, own},
		{Pace{RetryMin: 2 * time.Second}, queue.Backoff{Min: 2 * time.Second, Max: time.Minute}},
		{Pace{RetryMax: 2 * time.Second}, queue.Backoff{Min: time.Second, Max: 2 * time.Second}},
		{Pace{RetryMax: time.Millisecond}, queue.Backoff{Min: time.Millisecond, Max: time.Millisecond}},
		{
			Pace{RetryMin: time.Hour, RetryMax: 2 * time.Hour},
			queue.Backoff{Min: time.Hour, Max: 2 * time.Hour},
		},
	} {
		if got := c.pace.Retry(own); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.pace, got, c.want)
		}
	}
	if got := (Pace{RetryMin: time.Hour}).Retry(queue.Backoff{}); got != (queue.Backoff{Min: time.Hour}) {
		t.Errorf("without a longest pause: %+v", got)
	}
}

// TestWorkersOfThePace: this many keys are reconciled at the same time, with and without calls, and all may be of one
// namespace.
func TestWorkersOfThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const chosen = 3
		var now, most atomic.Int64
		c := &Controller{Workers: 10, Places: 100, Pace: Pace{Workers: chosen}}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			if pause := c.Enter(k, Lane{Driver: "d", Call: k.Kind, Namespace: "ns"}, nil); pause > 0 {
				return Result{After: pause}, nil
			}
			most.Store(max(most.Load(), now.Add(1)))
			<-time.After(time.Second)
			now.Add(-1)
			return Result{}, nil
		}
		run(t, c)
		for n := range 9 {
			c.Add(Key{Kind: "claim", Name: strconv.Itoa(n)})
		}
		<-time.After(time.Minute)
		if most.Load() != chosen {
			t.Errorf("%d at the same time, want %d", most.Load(), chosen)
		}
	})
}

func TestResultAfterBringsTheKeyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, tries := time.Now(), 0
		done := make(chan struct{})
		c := &Controller{}
		c.Reconcile = func(context.Context, Key) (Result, error) {
			if tries++; tries == 2 {
				close(done)
				return Result{}, nil
			}
			return Result{After: 6 * time.Minute}, nil
		}
		run(t, c)
		c.Add(Key{Name: "a"})
		<-done
		if got := time.Since(begin); got != 6*time.Minute {
			t.Errorf("came back after %v, want 6m", got)
		}
	})
}

func TestKeyString(t *testing.T) {
	for want, k := range map[string]Key{
		"volume/pv":  {Kind: "volume", Name: "pv"},
		"claim/ns/c": {Kind: "claim", Namespace: "ns", Name: "c"},
	} {
		if got := k.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
