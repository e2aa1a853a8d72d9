// Package testkit has what tests of many packages need: to wait for something
// without knowing when it comes.
package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Pauses between two questions: short at first, for what comes at once, and then
// longer, for questions that are work, such as running a program.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = 50 * time.Millisecond
)

// Until asks what is missing until the answer is nothing, and returns the last
// answer as an error when the context ends first. What is answered after the end
// does not count: by then, questions fail.
func Until(ctx context.Context, missing func() string) error {
	pause := time.NewTimer(firstPause)
	defer pause.Stop()
	last := "it was not asked for in time"
	for next := 2 * firstPause; ; next = min(2*next, longestPause) {
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

// Eventually fails the test when something is still missing after this time.
func Eventually(t testing.TB, limit time.Duration, missing func() string) {
	t.Helper()
	// What is cleaned up after a test may wait as well.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	if err := Until(ctx, missing); err != nil {
		t.Fatal(err)
	}
}

// Unless says what is missing as long as something is not so.
func Unless(missing string, so func() bool) func() string {
	return func() string {
		if so() {
			return ""
		}
		return missing
	}
}

// Error says what went wrong as long as something fails.
func Error(try func() error) func() string {
	return func() string {
		if err := try(); err != nil {
			return err.Error()
		}
		return ""
	}
}
