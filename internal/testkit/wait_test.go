package testkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestUntil: it ends as soon as nothing is missing, or with the last text that was returned in time.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, checks := time.Now(), 0
		missing := func() string {
			checks++
			return strings.Repeat("x", int((time.Second-time.Since(start))/(100*time.Millisecond)))
		}
		if err := Until(t.Context(), missing); err != nil || time.Since(start) > time.Second || checks < 10 {
			t.Errorf("after %v and %d checks: %v", time.Since(start), checks, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		err := Until(ctx, func() string {
			if ctx.Err() != nil {
				return "the server does not answer"
			}
			return "a volume"
		})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a volume") ||
			time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// failing records whether the test has failed.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatal(...any) { f.failed = true }

// TestEventually: it fails the test after the limit, and only then.
func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		Eventually(f, time.Second, Error(func() error { return nil }))
		Eventually(f, time.Second, Unless("no", func() bool { return true }))
		if f.failed {
			t.Error("a condition that holds has failed the test")
		}
		Eventually(f, time.Second, Error(func() error { return errors.New("no") }))
		if !f.failed {
			t.Error("a condition that does not hold has not failed the test")
		}
	})
}
