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

// TestClosing: what is done last is done when all work has ended, has a few seconds
// for it although all is to end, and its error is the end's.
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
		c.Closing = func(ctx context.Context) error {
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
		if err := <-ended; !errors.Is(err, broken) || took != closingLimit {
			t.Errorf("it ended with %v; what was done last had %s", err, took)
		}
	})
}

// TestBeforeRun: what is asked for before the controller runs is done when it does,
// or when its time has come.
func TestBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		at := map[string]time.Duration{}
		c := &Controller{}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			at[k.Name] = time.Since(begin)
			return Result{}, nil
		}
		c.AddAfter(Key{Name: "later"}, time.Minute)
		c.Add(Key{Name: "now"})
		pass(time.Second)
		run(t, c)
		pass(time.Hour)
		if diff := cmp.Diff(map[string]time.Duration{"now": time.Second, "later": time.Minute}, at); diff != "" {
			t.Errorf("worked on (-want +got):\n%s", diff)
		}
	})
}

// TestSuccessEndsFailures: a key that has gone well is tried again soon when it fails
// later; one that panics has failed.
func TestSuccessEndsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		c := &Controller{RetryMin: time.Second, RetryMax: time.Hour}
		c.Reconcile = func(context.Context, Key) (Result, error) {
			at = append(at, time.Since(begin))
			switch len(at) {
			case 3:
				return Result{After: 10 * time.Second}, nil
			case 2, 5:
				panic("nil map")
			case 6:
				return Result{}, nil
			}
			return Result{}, errors.New("no")
		}
		run(t, c)
		c.Add(Key{Name: "a"})
		pass(time.Hour)
		const s = time.Second
		if want := []time.Duration{0, 1 * s, 3 * s, 13 * s, 14 * s, 16 * s}; !slices.Equal(at, want) {
			t.Errorf("tries at %v, want %v", at, want)
		}
	})
}

// counting counts what it is told.
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
			c := &Controller{RetryMin: time.Second}
			c.Reconcile = func(context.Context, Key) (Result, error) {
				if tries++; tries < 3 {
					return Result{}, err
				}
				return Result{}, nil
			}
			run(t, c)
			c.Log = slog.New(counting{n: told})
			c.Add(Key{Name: "a"})
			pass(time.Minute)
			if tries != 3 || told.Load() != want {
				t.Errorf("%v: %d tries, told %d times, want %d", err, tries, told.Load(), want)
			}
		})
	}
}

// TestWantsItNoMore: a key that waits for its turn and does not ask for it again is
// not woken for it, and holds up nobody.
func TestWantsItNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, wants := map[string]int{}, true
		c := &Controller{Workers: 3}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			tries[k.Name]++
			if k.Name == "waits" && !wants {
				return Result{}, nil
			}
			if c.Turn(k, Lane{"d", "create", "ns"}, nil) == 0 {
				pass(time.Second)
			}
			return Result{}, nil
		}
		run(t, c)
		for _, name := range []string{"blocks", "waits", "next"} {
			c.Add(Key{Name: name})
			synctest.Wait()
		}
		wants = false
		c.Add(Key{Name: "waits"})
		pass(time.Hour)
		if diff := cmp.Diff(map[string]int{"blocks": 1, "waits": 2, "next": 2}, tries); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}
	})
}

// TestTurnComesMeanwhile: a key is worked on for another reason when its turn comes:
// it is not told to wait.
func TestTurnComesMeanwhile(t *testing.T) {
	var woken []Key
	l := &lanes{places: 1, wake: func(k Key) { woken = append(woken, k) }}
	first, second, lane := Key{Name: "first"}, Key{Name: "second"}, Lane{"d", "create", "ns"}
	for _, k := range []Key{first, second} {
		l.begin(k)
		if ok, _ := l.enter(k, lane); ok != (k == first) {
			t.Errorf("%s may go on: %v", k, ok)
		}
	}
	if !l.end(second) {
		t.Error("the second does not wait")
	}
	l.begin(second)
	l.end(first)
	if ok, _ := l.enter(second, lane); !ok || !slices.Equal(woken, []Key{second}) {
		t.Errorf("it is its turn, and it may go on: %v; woken %v", ok, woken)
	}
	if l.end(second) || len(l.of) > 0 || len(l.all) > 0 {
		t.Errorf("something is remembered: %v, %v", l.of, l.all)
	}
}

// TestTurnsAddNoWorkers: who has a turn does not count among those that are worked on
// at once; when it ends there are no more than before.
func TestTurnsAddNoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 3
		var busy, most atomic.Int32
		c := &Controller{Workers: workers, Places: 40}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			if k.Kind == "call" {
				for range 2 {
					if c.Turn(k, Lane{"d", "create", k.Namespace}, nil) > 0 {
						return Result{}, nil
					}
				}
				pass(time.Minute)
				return Result{}, nil
			}
			most.Store(max(most.Load(), busy.Add(1)))
			pass(time.Second)
			busy.Add(-1)
			return Result{}, nil
		}
		run(t, c)
		for _, when := range []string{"before", "during", "after"} {
			for i := range 20 {
				c.Add(Key{"other", when, string(rune('a' + i))})
			}
			pass(time.Second)
			for i := range 15 {
				c.Add(Key{"call", when, string(rune('a' + i))})
			}
			pass(20 * time.Second)
			if got := most.Swap(0); got != workers {
				t.Errorf("%s: %d are worked on at once, want %d", when, got, workers)
			}
			if when == "during" {
				pass(time.Hour)
			}
		}
		pass(time.Hour)
		if c.queue.free != workers {
			t.Errorf("%d of %d goroutines are free", c.queue.free, workers)
		}
	})
}

// TestBusyIsExplained: who waits reads what for, and whose turn it is.
func TestBusyIsExplained(t *testing.T) {
	want := volume.Because{
		Reason: volume.ReasonDriverBusy, Next: "d",
		Message: "driver d works on as many calls to create volumes as may be under way at once; this one waits for its turn",
	}
	if diff := cmp.Diff(want, Lane{"d", "create", "ns"}.busy()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
