package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// key is what these tests process on behalf of a namespace.
type key struct{ kind, namespace, name string }

func (k key) String() string { return k.kind + "/" + k.namespace + "/" + k.name }

// queueOf returns a queue whose keys are processed by process, which is given the
// queue.
func queueOf(o Options[key], process func(context.Context, *Queue[key], key) (Result, error)) *Queue[key] {
	var q *Queue[key]
	o.Process = func(ctx context.Context, k key) (Result, error) { return process(ctx, q, k) }
	q = newQueue(o)
	return q
}

// enters says whether a key holds a place in a lane.
func enters(q *Queue[key], k key, in Lane) bool {
	ok, _ := q.Enter(k, in)
	return ok
}

// TestHangingCallsHoldUpNobodyElse: 600 calls of one driver on behalf of one
// namespace never end. Calls of another driver, of another kind and on behalf of other
// namespaces start immediately, and so do keys that call no driver.
func TestHangingCallsHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 100
		var mu sync.Mutex
		hang, done := 0, map[string]bool{}
		q := queueOf(Options[key]{
			Workers: 3, Lanes: Limit{Places: places},
		}, func(ctx context.Context, q *Queue[key], k key) (Result, error) {
			if driver, call, ok := split(k.kind); ok {
				if !enters(q, k, Lane{driver, call, k.namespace}) {
					return Result{}, nil
				}
			}
			if k.namespace == "hangs" && k.kind == "a/create" {
				mu.Lock()
				hang++
				mu.Unlock()
				<-ctx.Done()
				return Result{}, ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			done[k.String()] = true
			return Result{}, nil
		})
		run(t, q)
		for i := range 600 {
			q.Add(key{"a/create", "hangs", fmt.Sprint(i)})
		}
		synctest.Wait()
		want := 0
		for _, kind := range []string{"a/delete", "b/create", "b/delete", "nothing"} {
			for i := range 300 {
				q.Add(key{kind, "hangs", fmt.Sprint(i)})
				q.Add(key{kind, "other", fmt.Sprint(i)})
				want += 2
			}
		}
		for _, namespace := range []string{"third", "fourth"} {
			for i := range 300 {
				q.Add(key{"a/create", namespace, fmt.Sprint(i)})
				want++
			}
		}
		synctest.Wait() // No time passes.
		mu.Lock()
		defer mu.Unlock()
		if hang != places/2 {
			t.Errorf("%d calls hang, want half of %d", hang, places)
		}
		if len(done) != want {
			t.Errorf("%d of %d others were done", len(done), want)
		}
	})
}

func split(kind string) (driver, call string, ok bool) {
	if len(kind) < 3 || kind[1] != '/' {
		return "", "", false
	}
	return kind[:1], kind[2:], true
}

// TestEveryKeyHasItsTurn: calls that take a second each, of namespaces with many and with
// few requests: a namespace with few is not the last.
func TestEveryKeyHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, many, few = 8, 200, 4
		begin := time.Now()
		var mu sync.Mutex
		last, busy, most := map[string]time.Duration{}, 0, 0
		done := 0
		q := queueOf(Options[key]{
			Workers: 2, Lanes: Limit{Places: places},
		}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
			if !enters(q, k, Lane{"d", "create", k.namespace}) {
				return Result{}, nil
			}
			mu.Lock()
			busy++
			most = max(most, busy)
			mu.Unlock()
			pass(time.Second)
			mu.Lock()
			defer mu.Unlock()
			busy--
			done++
			last[k.namespace] = time.Since(begin)
			return Result{}, nil
		})
		run(t, q)
		for i := range many {
			q.Add(key{"claim", "many", fmt.Sprint(i)})
		}
		synctest.Wait()
		for n := range 5 {
			for i := range few {
				q.Add(key{"claim", fmt.Sprint("few-", n), fmt.Sprint(i)})
			}
		}
		settle(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if done != many+5*few || most > places {
			t.Errorf("%d of %d done, %d at once", done, many+5*few, most)
		}
		for n := range 5 {
			// Four places are left for them: a turn of a second for each key.
			if got := last[fmt.Sprint("few-", n)]; got > 10*time.Second {
				t.Errorf("namespace %d was done after %v", n, got)
			}
		}
		if len(q.lanes.tickets) != 0 || len(q.lanes.all) != 0 {
			t.Errorf("something is remembered: %v, %v", q.lanes.tickets, q.lanes.all)
		}
	})
}

// TestWaitingForgetsNoFailure: a key that has failed, or polls, and waits before it
// is processed again, is nevertheless retried after growing pauses.
func TestWaitingForgetsNoFailure(t *testing.T) {
	growing := Backoff{time.Second, time.Hour}
	for name, o := range map[string]outcome{"error": {err: errNo}, "poll": {result: Result{Poll: true}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var tries []time.Duration
				q := queueOf(Options[key]{
					Workers: 5, Retry: growing, Poll: growing,
				}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
					if !enters(q, k, Lane{"d", "create", "ns"}) {
						return Result{}, nil
					}
					if k.name == "blocks" {
						pass(time.Second)
						return Result{After: time.Millisecond}, nil
					}
					tries = append(tries, time.Since(begin))
					return o.result, o.err
				})
				run(t, q)
				q.Add(key{name: "blocks"})
				q.Add(key{name: "waits"})
				settle(40 * time.Second)
				for i := 2; i < len(tries); i++ {
					if pause, before := tries[i]-tries[i-1], tries[i-1]-tries[i-2]; pause < before {
						t.Errorf("tries at %v: the pauses do not grow", tries)
					}
				}
				if len(tries) < 4 || len(tries) > 7 {
					t.Errorf("tries at %v", tries)
				}
			})
		})
	}
}

// TestEnterAtRest: a key that is not processed can hold a place, and no worker is
// started for it.
func TestEnterAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOf(Options[key]{Workers: 3, Lanes: Limit{Places: 10}}, nil)
		run(t, q)
		synctest.Wait()
		waits := key{name: "waits"}
		q.AddAfter(waits, time.Hour)
		for _, k := range []key{{name: "new"}, waits} {
			if !enters(q, k, Lane{"d", "create", "ns"}) {
				t.Errorf("%s has no place", k)
			}
		}
		if q.free != 3 {
			t.Errorf("%d workers are free, want 3", q.free)
		}
	})
}

// TestTurnEndsPatience: a key that has had its turn is not processed again because of its
// wait, but is if it was added for another reason, before, during or after the wait.
func TestTurnEndsPatience(t *testing.T) {
	const patience = 10 * time.Second
	const s = time.Second
	for _, c := range []struct {
		name string
		// at is when the key is added, to be processed after a pause; 0 means without one.
		at, after time.Duration
		want      []time.Duration
	}{
		{"never", -1, 0, []time.Duration{1 * s, 9 * s}},
		{"meanwhile", 2 * s, 0, []time.Duration{1 * s, 2 * s, 9 * s}},
		{"before, with a pause that ends sooner", 0, 5 * s, []time.Duration{1 * s, 5 * s, 9 * s}},
		{"before, with a pause that ends later", 0, 60 * s, []time.Duration{1 * s, 9 * s, 14 * s}},
		{"meanwhile, with a pause that ends later", 2 * s, 60 * s, []time.Duration{1 * s, 9 * s, 14 * s}},
		{"in its turn", 10 * s, 3 * s, []time.Duration{1 * s, 9 * s, 14 * s}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var at []time.Duration
				q := queueOf(Options[key]{Workers: 5}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
					if k.name == "waits" {
						at = append(at, time.Since(begin))
					}
					ok, waited := q.Enter(k, Lane{"d", "create", "ns"})
					if !ok {
						return Result{After: patience - waited}, nil
					}
					if k.name == "blocks" {
						pass(9 * s)
					} else {
						pass(5 * s)
					}
					return Result{}, nil
				})
				if c.at >= 0 {
					time.AfterFunc(c.at, func() {
						if c.after == 0 {
							q.Add(key{name: "waits"})
						} else {
							q.AddAfter(key{name: "waits"}, c.after)
						}
					})
				}
				run(t, q)
				q.Add(key{name: "blocks"})
				pass(time.Second)
				q.Add(key{name: "waits"})
				settle(time.Hour)
				want(t, at, c.want...)
			})
		})
	}
}

// TestWantsItNoMore: a key that waits for its turn and does not enter again is not woken
// for it, and does not delay others.
func TestWantsItNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, wants := map[string]int{}, true
		q := queueOf(Options[key]{Workers: 3}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
			tries[k.name]++
			if k.name == "waits" && !wants {
				return Result{}, nil
			}
			if enters(q, k, Lane{"d", "create", "ns"}) {
				pass(time.Second)
			}
			return Result{}, nil
		})
		run(t, q)
		for _, name := range []string{"blocks", "waits", "next"} {
			q.Add(key{name: name})
			synctest.Wait()
		}
		wants = false
		q.Add(key{name: "waits"})
		settle(time.Hour)
		if !maps.Equal(tries, map[string]int{"blocks": 1, "waits": 2, "next": 2}) {
			t.Errorf("tries: %v", tries)
		}
	})
}

// TestTurnComesMeanwhile: a key is processed for another reason when its turn comes: it
// does not have to wait.
func TestTurnComesMeanwhile(t *testing.T) {
	var woken []key
	l := &lanes[key]{limit: Limit{Places: 1}, granted: func(k key) { woken = append(woken, k) }}
	first, second, lane := key{name: "first"}, key{name: "second"}, Lane{"d", "create", "ns"}
	for _, k := range []key{first, second} {
		l.processing(k)
		if ok, _ := l.enter(k, lane, false); ok != (k == first) {
			t.Errorf("%s may go on: %v", k, ok)
		}
	}
	if waits, _ := l.processed(second); !waits {
		t.Error("the second does not wait")
	}
	l.processing(second)
	l.processed(first)
	if ok, _ := l.enter(second, lane, false); !ok || !slices.Equal(woken, []key{second}) {
		t.Errorf("it is its turn, and it may go on: %v; woken %v", ok, woken)
	}
	if waits, _ := l.processed(second); waits || len(l.tickets) > 0 || len(l.all) > 0 {
		t.Errorf("something is remembered: %v, %v", l.tickets, l.all)
	}
}

// TestTurnsAddNoWorkers: a key that has a place does not count towards the workers; when
// it ends there are no more workers than before.
func TestTurnsAddNoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 3
		var busy, most atomic.Int32
		q := queueOf(Options[key]{
			Workers: workers, Lanes: Limit{Places: 40},
		}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
			if k.kind == "call" {
				for range 2 {
					if !enters(q, k, Lane{"d", "create", k.namespace}) {
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
		})
		run(t, q)
		for _, when := range []string{"before", "during", "after"} {
			for i := range 20 {
				q.Add(key{"other", when, string(rune('a' + i))})
			}
			pass(time.Second)
			for i := range 15 {
				q.Add(key{"call", when, string(rune('a' + i))})
			}
			settle(20 * time.Second)
			if got := most.Swap(0); got != workers {
				t.Errorf("%s: %d are worked on at once, want %d", when, got, workers)
			}
			if when == "during" {
				settle(time.Hour)
			}
		}
		settle(time.Hour)
		if q.free != workers {
			t.Errorf("%d of %d goroutines are free", q.free, workers)
		}
	})
}

// TestOrderOfTurns: the namespaces in a circle, the keys of each as they came,
// whatever else has a key that waits processed.
func TestOrderOfTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		q := queueOf(Options[key]{}, func(_ context.Context, q *Queue[key], k key) (Result, error) {
			if enters(q, k, Lane{"d", "create", k.namespace}) {
				order = append(order, k.namespace+k.name)
				pass(time.Second)
			}
			return Result{}, nil
		})
		run(t, q)
		for _, of := range []string{"x0", "x1", "x2", "x3", "y1", "x4", "y2", "z1", "x2", "y2"} {
			q.Add(key{namespace: of[:1], name: of[1:]})
			synctest.Wait()
		}
		settle(time.Hour)
		if want := strings.Fields("x0 x1 y1 z1 x2 y2 x3 x4"); !slices.Equal(order, want) {
			t.Errorf("turns of %v, want %v", order, want)
		}
	})
}

// TestUndivided: one namespace may have all places, and then others wait.
func TestUndivided(t *testing.T) {
	for undivided, want := range map[bool][2]int{false: {8, 8}, true: {16, 0}} {
		synctest.Test(t, func(t *testing.T) {
			hang := map[string]int{}
			var mu sync.Mutex
			o := Options[key]{Workers: 2, Lanes: Limit{Places: 16, Undivided: undivided}}
			q := queueOf(o, func(ctx context.Context, q *Queue[key], k key) (Result, error) {
				if enters(q, k, Lane{Driver: "d", Namespace: k.namespace}) {
					mu.Lock()
					hang[k.namespace]++
					mu.Unlock()
					<-ctx.Done()
				}
				return Result{}, nil
			})
			run(t, q)
			for i := range 40 {
				q.Add(key{namespace: "first", name: fmt.Sprint(i)})
			}
			synctest.Wait()
			for i := range 40 {
				q.Add(key{namespace: "second" + fmt.Sprint(i), name: fmt.Sprint(i)})
			}
			synctest.Wait()
			others := len(hang) - 1
			if hang["first"] != want[0] || others != want[1] {
				t.Errorf("undivided %v: %d calls of the first namespace, %d of others, want %v", undivided, hang["first"],
					others, want)
			}
		})
	}
}
