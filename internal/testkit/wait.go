package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// The pauses between two checks: short ones first, for conditions that hold soon, and then longer ones, for checks
// that are expensive, such as running a program. Who has waited for long waits a share of it longer, and leaves the
// processor to others.
const (
	firstPause = 5 * time.Millisecond
	longPause  = 50 * time.Millisecond
	waitShare  = 20
)

// Until calls missing until it returns "". If the context ends first, it returns the last text of
// missing as an error. The text of a check that ends after the context is ignored, because checks
// fail without the context.
func Until(ctx context.Context, missing func() string) error {
	pause := time.NewTimer(firstPause)
	defer pause.Stop()
	last := "it was not asked for in time"
	for began, next := time.Now(), 2*firstPause; ; next = max(min(2*next, longPause), time.Since(began)/waitShare) {
		now := missing()
		if now == "" {
			return nil
		}
		if ctx.Err() == nil {
			last = now
		}
		select {
		case <-pause.C:
			pause.Reset(next)
		case <-ctx.Done():
			return fmt.Errorf("never: %s: %w", last, ctx.Err())
		}
	}
}

// Eventually fails the test if Until fails within the limit.
func Eventually(t testing.TB, limit time.Duration, missing func() string) {
	t.Helper()
	// The context of the test has ended when its cleanup functions call this.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	if err := Until(ctx, missing); err != nil {
		t.Fatal(err)
	}
}

// Unless returns a check that returns the text missing while condition is false.
func Unless(missing string, condition func() bool) func() string {
	return func() string {
		if condition() {
			return ""
		}
		return missing
	}
}

// Error returns a check that returns the text of try's error while it fails.
func Error(try func() error) func() string {
	return func() string {
		if err := try(); err != nil {
			return err.Error()
		}
		return ""
	}
}
