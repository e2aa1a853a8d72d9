package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time pass, which only the clock of a test does.
func pass(d time.Duration) { <-time.After(d) }

// settle lets time pass, and returns when everything that is due in that time has happened.
func settle(d time.Duration) {
	pass(d)
	synctest.Wait()
}

// newQueue returns a queue whose log is discarded.
func newQueue[K comparable](o Options[K]) *Queue[K] {
	o.Log = slog.New(slog.DiscardHandler)
	return New(o)
}

// run runs a queue until the test or the returned function ends it.
func run[K comparable](t *testing.T, q *Queue[K]) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		q.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// TestOneAtATime: a key is never processed by two workers at the same time, is processed
// once more if it was added in the meantime, and no more keys are processed at the same
// time than there are workers.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, keys = 3, 20
		var mu sync.Mutex
		inFlight, most, times := map[int]bool{}, 0, map[int]int{}
		var q *Queue[int]
		q = newQueue(Options[int]{Workers: workers, Process: func(_ context.Context, k int) (Result, error) {
			mu.Lock()
			if inFlight[k] {
				t.Errorf("%d is processed twice at once", k)
			}
			inFlight[k] = true
			most = max(most, len(inFlight))
			times[k]++
			first := times[k] == 1
			mu.Unlock()
			if first {
				// Two additions during processing cause one more.
				q.Add(k)
				q.Add(k)
			}
			pass(time.Second)
			mu.Lock()
			delete(inFlight, k)
			mu.Unlock()
			return Result{}, nil
		}})
		run(t, q)
		for k := range keys {
			q.Add(k)
			q.Add(k)
		}
		settle(time.Hour)
		if most != workers {
			t.Errorf("%d keys were processed at once, want %d", most, workers)
		}
		for k := range keys {
			if times[k] != 2 {
				t.Errorf("key %d was processed %d times, want 2", k, times[k])
			}
		}
	})
}

// TestSooner: of several pauses the one that ends first counts, and the others
// do not; Add does not take a pause back.
func TestSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		q := newQueue(Options[string]{Process: times(&at)})
		run(t, q)
		q.AddAfter("a", 3*time.Second)
		q.AddAfter("a", 2*time.Second)
		q.AddAfter("a", 4*time.Second)
		q.Add("a")
		settle(time.Hour)
		want(t, at, 0, 2*time.Second)
	})
}

// times notes when it was called; every call has the result that is next.
func times(at *[]time.Duration, results ...any) func(context.Context, string) (Result, error) {
	begin := time.Now()
	return func(context.Context, string) (Result, error) {
		*at = append(*at, time.Since(begin))
		if len(*at) > len(results) {
			return Result{}, nil
		}
		switch r := results[len(*at)-1].(type) {
		case Result:
			return r, nil
		case error:
			return Result{}, r
		default:
			panic(r)
		}
	}
}

func want(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("processed after %v, want %v", got, want)
	}
}

var errNo = errors.New("no")

// TestResults: when a key is processed again without being added.
func TestResults(t *testing.T) {
	const s = time.Second
	retry, poll := Backoff{s, 3 * s}, Backoff{10 * s, 20 * s}
	for name, c := range map[string]struct {
		results []any
		want    []time.Duration
	}{
		"nothing is wanted":   {[]any{Result{}}, []time.Duration{0}},
		"after a pause":       {[]any{Result{After: 6 * s}}, []time.Duration{0, 6 * s}},
		"a panic is an error": {[]any{errNo, "nil map", errNo}, []time.Duration{0, 1 * s, 3 * s, 6 * s}},
		"pauses after errors are bounded": {
			[]any{errNo, errNo, errNo, errNo}, []time.Duration{0, 1 * s, 3 * s, 6 * s, 9 * s},
		},
		"success ends errors": {
			[]any{errNo, errNo, Result{After: 10 * s}, errNo}, []time.Duration{0, 1 * s, 3 * s, 13 * s, 14 * s},
		},
		"polls have pauses of their own": {
			[]any{Result{Poll: true}, Result{Poll: true}, Result{Poll: true}}, []time.Duration{0, 10 * s, 30 * s, 50 * s},
		},
		"a poll neither counts as an error nor ends them": {
			[]any{errNo, Result{Poll: true}, errNo, Result{Poll: true}}, []time.Duration{0, 1 * s, 11 * s, 13 * s, 33 * s},
		},
		"success ends polls": {
			[]any{Result{Poll: true}, Result{After: s}, Result{Poll: true}}, []time.Duration{0, 10 * s, 11 * s, 21 * s},
		},
		"a pause that is shorter than the poll's": {[]any{Result{Poll: true, After: 4 * s}}, []time.Duration{0, 4 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				q := newQueue(Options[string]{Retry: retry, Poll: poll, Process: times(&at, c.results...)})
				run(t, q)
				q.Add("a")
				settle(time.Hour)
				want(t, at, c.want...)
				if len(q.keys) != 0 || q.Failures("a") != 0 {
					t.Errorf("%d keys are remembered, %d failures", len(q.keys), q.Failures("a"))
				}
			})
		})
	}
}

// TestHeld: a key that waits for an administrator's consent is processed soon after it was given, however often it has
// failed.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		errHeld := errors.New("held")
		var at []time.Duration
		q := newQueue(Options[string]{
			Retry: Backoff{4 * s, time.Hour}, Held: func(err error) bool { return errors.Is(err, errHeld) },
			Process: times(&at, errHeld, errHeld, errHeld, errNo, Result{}),
		})
		run(t, q)
		q.Add("a")
		settle(time.Hour)
		want(t, at, 0, 4*s, 9*s, 14*s, 46*s)
	})
}

// TestDefaults: one worker, and pauses that grow from 50 ms to 5 minutes.
func TestDefaults(t *testing.T) {
	q := New(Options[string]{})
	normal := Backoff{50 * time.Millisecond, 5 * time.Minute}
	if o := q.options; o.Workers != 1 || o.Lanes.Places != 1 || o.Retry != normal || o.Poll != normal || o.Log == nil {
		t.Errorf("%+v", o)
	}
}

func TestBackoff(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		b    Backoff
		want []time.Duration
	}{
		{Backoff{s, 6 * s}, []time.Duration{1 * s, 2 * s, 4 * s, 6 * s, 6 * s}},
		{Backoff{s, 4 * s}, []time.Duration{1 * s, 2 * s, 4 * s, 4 * s}},
		{Backoff{5 * s, 4 * s}, []time.Duration{4 * s, 4 * s}},
	} {
		var got []time.Duration
		for n := range c.want {
			got = append(got, c.b.Pause(n))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.b, got, c.want)
		}
		if got := c.b.Pause(1000); got != c.b.Max {
			t.Errorf("%v: after 1000 failures %v", c.b, got)
		}
	}
}

// TestFailures: failures can be queried while they last.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		q := newQueue(Options[string]{Retry: Backoff{time.Minute, time.Minute}, Process: times(&at, errNo, errNo)})
		run(t, q)
		q.Add("a")
		for _, want := range []int{1, 2, 0} {
			synctest.Wait()
			if got := q.Failures("a"); got != want {
				t.Errorf("%d failures, want %d", got, want)
			}
			settle(time.Minute)
		}
	})
}

// TestAttempt: while a key is processed, the number of the failure in a row and the pause after it can be
// queried; the pause is kept.
func TestAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q *Queue[string]
		var due time.Time
		n := 0
		q = newQueue(Options[string]{
			Retry: Backoff{time.Minute, 3 * time.Minute}, Process: func(context.Context, string) (Result, error) {
				number, pause := q.Attempt("a")
				if n++; number != n || !due.IsZero() && !time.Now().Equal(due) {
					t.Errorf("attempt %d is number %d, at %s, due at %s", n, number, time.Now(), due)
				}
				due = time.Now().Add(pause)
				return Result{}, errNo
			},
		})
		run(t, q)
		q.Add("a")
		settle(10 * time.Minute)
		if n != 5 || q.LongestPause() != 3*time.Minute {
			t.Errorf("%d attempts, pauses of up to %s", n, q.LongestPause())
		}
	})
}

// TestBeforeRun: what is added before the queue runs is processed when it does,
// or when its time has come.
func TestBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at, begin := map[string]time.Duration{}, time.Now()
		q := newQueue(Options[string]{Process: func(_ context.Context, k string) (Result, error) {
			at[k] = time.Since(begin)
			return Result{}, nil
		}})
		q.AddAfter("later", time.Minute)
		q.AddAfter("soon", time.Millisecond)
		q.Add("now")
		pass(time.Second)
		run(t, q)
		settle(time.Hour)
		if len(at) != 3 || at["now"] != time.Second || at["soon"] != time.Second || at["later"] != time.Minute {
			t.Errorf("processed after %v", at)
		}
	})
}

// TestPanicOfOneKeyDoesNotStopOthers, also when there is only one worker.
func TestPanicOfOneKeyDoesNotStopOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		q := newQueue(Options[string]{Process: func(_ context.Context, k string) (Result, error) {
			if k == "poison" {
				panic("nil map")
			}
			close(done)
			return Result{}, nil
		}})
		run(t, q)
		q.Add("poison")
		q.Add("good")
		<-done
	})
}

// TestFailuresAreTold with their attempt, a panic with its stack, but no silent
// error and none of the end.
func TestFailuresAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		result any
		want   []string
	}{
		"error": {errNo, []string{
			`level=WARN msg="failed, will be retried" volume=a attempt=1 err=no`,
			`level=WARN msg="failed, will be retried" volume=a attempt=2 err=no`,
		}},
		"panic": {"nil map", []string{
			`level=ERROR msg=panic volume=a panic="nil map" stack="goroutine`,
			`level=WARN msg="failed, will be retried" volume=a attempt=1 err="panic: nil map"`,
			`level=ERROR msg=panic volume=a panic="nil map" stack="goroutine`,
			`level=WARN msg="failed, will be retried" volume=a attempt=2 err="panic: nil map"`,
		}},
		"silent": {fmt.Errorf("as usual: %w", io.EOF), nil},
		"poll":   {Result{Poll: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				var log bytes.Buffer
				q := New(Options[string]{
					Retry: Backoff{Min: time.Second}, Noun: "volume", Process: times(&at, c.result, c.result),
					Silent: func(err error) bool { return errors.Is(err, io.EOF) },
					Log:    slog.New(slog.NewTextHandler(&log, nil)),
				})
				run(t, q)
				q.Add("a")
				settle(time.Minute)
				if len(at) != 3 {
					t.Errorf("processed after %v", at)
				}
				lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
				if len(c.want) == 0 {
					c.want = []string{""}
				}
				if !slices.EqualFunc(lines, c.want, strings.Contains) {
					t.Errorf("the log has\n%s", log.String())
				}
			})
		})
	}
}

// TestEndIsNoFailure: an error because the queue ends is not reported.
func TestEndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		q := New(Options[string]{
			Process: func(ctx context.Context, _ string) (Result, error) {
				<-ctx.Done()
				return Result{}, ctx.Err()
			},
			Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		stop := run(t, q)
		q.Add("a")
		synctest.Wait()
		stop()
		if log.Len() > 0 {
			t.Error(log.String())
		}
	})
}

// TestForgets: when all is done nothing is left of thousands of keys, and no
// goroutine either.
func TestForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 10
		var mu sync.Mutex
		tries := map[int]int{}
		q := newQueue(Options[int]{
			Workers: workers, Retry: Backoff{time.Second, time.Second}, Poll: Backoff{time.Second, time.Second},
			Process: func(_ context.Context, k int) (Result, error) {
				mu.Lock()
				defer mu.Unlock()
				switch tries[k]++; tries[k] {
				case 1:
					return Result{}, errNo
				case 2:
					return Result{Poll: true}, nil
				}
				return Result{}, nil
			},
		})
		for k := range 3 * manyKeys {
			q.Add(k)
		}
		stop := run(t, q)
		settle(time.Minute)
		if len(tries) != 3*manyKeys || q.keys != nil || q.ready != nil {
			t.Errorf("%d keys were processed, %d remembered, %d queued", len(tries), len(q.keys), len(q.ready))
		}
		if q.free != workers {
			t.Errorf("%d of %d workers are left", workers-q.free, workers)
		}
		// A goroutine that is left blocks this, which synctest reports.
		q.workers.Wait()
		stop()
	})
}

// TestStops: what is queued when a queue ends is not processed, and what is
// processed ends before Run returns.
func TestStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, ended := 0, 0
		q := newQueue(Options[string]{Process: func(context.Context, string) (Result, error) {
			started++
			pass(time.Second)
			ended++
			return Result{After: time.Second}, errNo
		}})
		stop := run(t, q)
		q.Add("a")
		q.Add("b")
		q.AddAfter("c", time.Minute)
		synctest.Wait()
		stop()
		if started != 1 || ended != 1 {
			t.Errorf("%d started, %d ended, want 1 and 1", started, ended)
		}
		q.Add("d")
		q.AddAfter("e", time.Second)
		settle(time.Hour)
		if started != 1 {
			t.Error("something was processed after the end")
		}
	})
}
