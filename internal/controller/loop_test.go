package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// TestRights are the events, all inputs and all outputs, and nothing more.
func TestRights(t *testing.T) {
	d := Declaration{Name: "x", Inputs: kube.Read("", "pods"), Outputs: []kube.Access{kube.Write("", "nodes", "patch")}}
	want := []kube.Access{
		{Resource: "events", Verbs: []string{"create", "patch", "update"}},
		{Resource: "pods", Verbs: []string{"get", "list", "watch"}},
		{Resource: "nodes", Verbs: []string{"patch"}},
	}
	for range 2 {
		if diff := cmp.Diff(want, d.Rights()); diff != "" {
			t.Errorf("rights (-want +got):\n%s", diff)
		}
	}
}

// TestClosing: closing runs after all work has ended, has a few seconds although the context is done, and its error
// becomes the result.
func TestClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		working, took := false, time.Duration(0)
		c := &Controller{Log: slog.New(slog.DiscardHandler)}
		c.Reconcile = func(ctx context.Context, _ Key) (Result, error) {
			working = true
			<-ctx.Done()
			pass(time.Second)
			working = false
			return Result{}, ctx.Err()
		}
		c.Close = func(ctx context.Context) error {
			if working || ctx.Err() != nil {
				t.Errorf("something is worked on: %v; the end of what is done last: %v", working, ctx.Err())
			}
			begin := time.Now()
			<-ctx.Done()
			took = time.Since(begin)
			return broken
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		c.Add(Key{Name: "a"})
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, broken) || took != closeTimeout {
			t.Errorf("it ended with %v; what was done last had %s", err, took)
		}
	})
}

// counting counts log records.
type counting struct {
	slog.Handler
	n *atomic.Int32
}

func (h counting) Enabled(context.Context, slog.Level) bool      { return true }
func (h counting) Handle(_ context.Context, _ slog.Record) error { h.n.Add(1); return nil }

// TestFailuresAreTold, but no conflict, which only says that the facts were old.
func TestFailuresAreTold(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "x"}, "x", nil)
	for want, err := range map[int32]error{0: conflict, 2: errors.New("no")} {
		synctest.Test(t, func(t *testing.T) {
			tries, told := 0, &atomic.Int32{}
			c := &Controller{RetryMin: time.Second, Log: slog.New(counting{n: told})}
			c.Reconcile = func(context.Context, Key) (Result, error) {
				if tries++; tries < 3 {
					return Result{}, err
				}
				return Result{}, nil
			}
			run(t, c)
			c.Add(Key{Name: "a"})
			pass(time.Minute)
			synctest.Wait()
			if tries != 3 || told.Load() != want {
				t.Errorf("%v: %d tries, logged %d times, want %d", err, tries, told.Load(), want)
			}
		})
	}
}

// TestWaitingIsTold: a key that waits long is reported together with what holds it up, and again as long as it waits.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var told []time.Duration
		var why volume.Because
		c := &Controller{Pace: Pace{Workers: 1}} // its place is not given to others
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			after := c.Enter(k, Lane{Driver: "d", Call: "create", Namespace: "ns"}, func(b volume.Because) {
				told, why = append(told, time.Since(begin)), b
			})
			if after == 0 && k.Name == "blocks" {
				pass(100 * time.Second)
			}
			return Result{After: after}, nil
		}
		run(t, c)
		c.Add(Key{Name: "blocks"})
		synctest.Wait()
		c.Add(Key{Name: "waits"})
		pass(time.Hour)
		synctest.Wait()
		if want := []time.Duration{laneWaitReported, laneWaitReported + laneWaitPause}; !slices.Equal(told, want) {
			t.Errorf("reported after %v, want %v", told, want)
		}
		if why.Reason != volume.ReasonDriverBusy || why.Next != volume.Driver("d") {
			t.Errorf("reported %+v", why)
		}
	})
}

// TestBusyIsExplained: the reason of a waiting key names what it waits for, and whose turn it is.
func TestBusyIsExplained(t *testing.T) {
	want := volume.Because{
		Reason: volume.ReasonDriverBusy, Next: volume.Driver("d"),
		Message: "driver d has reached its limit of concurrent create calls; waiting for a slot",
	}
	if diff := cmp.Diff(want, busy(Lane{Driver: "d", Call: "create", Namespace: "ns"})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
