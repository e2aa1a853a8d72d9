package testkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestUntil: it ends as soon as nothing is missing, or with the last answer that
// was given in time.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, asked := time.Now(), 0
		missing := func() string {
			asked++
			return strings.Repeat("x", int((time.Second-time.Since(begin))/(100*time.Millisecond)))
		}
		if err := Until(t.Context(), missing); err != nil || time.Since(begin) > time.Second || asked < 10 {
			t.Errorf("after %v and %d questions: %v", time.Since(begin), asked, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin = time.Now()
		err := Until(ctx, func() string {
			if ctx.Err() != nil {
				return "the server does not answer"
			}
			return "a volume"
		})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "a volume") ||
			time.Since(begin) != time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// failing is a test whose failure is looked at.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Fatal(...any) { f.failed = true }

// TestEventually: a test whose time is over fails.
func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		Eventually(f, time.Second, Error(func() error { return nil }))
		Eventually(f, time.Second, Unless("no", func() bool { return true }))
		if f.failed {
			t.Error("what is so has failed")
		}
		Eventually(f, time.Second, Error(func() error { return errors.New("no") }))
		if !f.failed {
			t.Error("what is not so has not failed")
		}
	})
}
