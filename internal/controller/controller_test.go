package controller

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time pass, which only the clock of a test does.
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
