package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/volume"
)

// TestHangingCallsHoldUpNobodyElse: 600 calls of one driver on behalf of one
// namespace never end. Calls of another driver, of another kind and on behalf of
// others go on at once, and so does what calls nobody.
func TestHangingCallsHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 100
		var mu sync.Mutex
		hang, done := 0, map[string]bool{}
		c := &Controller{Workers: 3, Places: places}
		c.Reconcile = func(ctx context.Context, k Key) (Result, error) {
			if driver, call, ok := split(k.Kind); ok {
				if c.Turn(k, Lane{driver, call, k.Namespace}, nil) > 0 {
					return Result{}, nil
				}
			}
			if k.Namespace == "hangs" && k.Kind == "a/create" {
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
		}
		run(t, c)
		for i := range 600 {
			c.Add(Key{"a/create", "hangs", fmt.Sprint(i)})
		}
		synctest.Wait()
		want := 0
		for _, kind := range []string{"a/delete", "b/create", "b/delete", "nothing"} {
			for i := range 300 {
				c.Add(Key{kind, "hangs", fmt.Sprint(i)})
				c.Add(Key{kind, "other", fmt.Sprint(i)})
				want += 2
			}
		}
		for _, namespace := range []string{"third", "fourth"} {
			for i := range 300 {
				c.Add(Key{"a/create", namespace, fmt.Sprint(i)})
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

// TestEveryKeyHasItsTurn: calls that take a second each, of namespaces that ask
// for many and for few: who asks for few is not the last.
func TestEveryKeyHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places, many, few = 8, 200, 4
		begin := time.Now()
		var mu sync.Mutex
		last, busy, most := map[string]time.Duration{}, 0, 0
		done := 0
		c := &Controller{Workers: 2, Places: places}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			if c.Turn(k, Lane{"d", "create", k.Namespace}, nil) > 0 {
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
			last[k.Namespace] = time.Since(begin)
			return Result{}, nil
		}
		run(t, c)
		for i := range many {
			c.Add(Key{"claim", "many", fmt.Sprint(i)})
		}
		synctest.Wait()
		for n := range 5 {
			for i := range few {
				c.Add(Key{"claim", fmt.Sprint("few-", n), fmt.Sprint(i)})
			}
		}
		pass(time.Hour)
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
		if len(c.lanes.of) != 0 || len(c.lanes.all) != 0 {
			t.Errorf("something is remembered: %v, %v", c.lanes.of, c.lanes.all)
		}
	})
}

// TestWaitingForgetsNoFailure: a key that has failed, and waits before it is
// tried again, comes back later and later nevertheless.
func TestWaitingForgetsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var tries []time.Duration
		c := &Controller{Workers: 5, Places: 1, RetryMin: time.Second, RetryMax: time.Hour}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			if c.Turn(k, Lane{"d", "create", "ns"}, nil) > 0 {
				return Result{}, nil
			}
			if k.Name == "blocks" {
				pass(time.Second)
				return Result{After: time.Millisecond}, nil
			}
			tries = append(tries, time.Since(begin))
			return Result{}, errors.New("no")
		}
		run(t, c)
		c.Add(Key{Name: "blocks"})
		c.Add(Key{Name: "fails"})
		pass(40 * time.Second)
		for i := 2; i < len(tries); i++ {
			if pause, before := tries[i]-tries[i-1], tries[i-1]-tries[i-2]; pause < before {
				t.Errorf("tries at %v: the pauses do not grow", tries)
			}
		}
		if len(tries) < 4 || len(tries) > 7 {
			t.Errorf("tries at %v", tries)
		}
	})
}

// TestWaitingIsTold: who waits for long is told, by whom it is held up, and again
// as long as that is so.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var told []time.Duration
		var why volume.Because
		c := &Controller{Workers: 5, Places: 1}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			after := c.Turn(k, Lane{"d", "create", "ns"}, func(b volume.Because) {
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
		if want := []time.Duration{turnPatience, turnPatience + turnPause}; !slices.Equal(told, want) {
			t.Errorf("told after %v, want %v", told, want)
		}
		if why.Reason != volume.ReasonDriverBusy || why.Next != "d" {
			t.Errorf("told %+v", why)
		}
	})
}

// TestTurnEndsPatience: what has had its turn does not come back because it had
// waited for it.
func TestTurnEndsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := map[string]int{}
		c := &Controller{Workers: 5, Places: 1}
		c.Reconcile = func(_ context.Context, k Key) (Result, error) {
			after := c.Turn(k, Lane{"d", "create", "ns"}, func(volume.Because) { t.Error("somebody is told") })
			if after == 0 {
				calls[k.Name]++
				pass(turnPatience - time.Second)
			}
			return Result{After: after}, nil
		}
		run(t, c)
		c.Add(Key{Name: "blocks"})
		synctest.Wait()
		c.Add(Key{Name: "waits"})
		pass(time.Hour)
		if calls["blocks"] != 1 || calls["waits"] != 1 {
			t.Errorf("calls: %v", calls)
		}
	})
}

// TestLanes is a machine that begins and ends work on keys, some of which change
// what they want, and looks at what must hold at any time.
func TestLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &lanesMachine{woken: map[Key]int{}, inside: map[Key]Lane{}, wants: map[Key]Lane{}}
		m.lanes = &lanes{places: rapid.IntRange(1, 9).Draw(t, "places"), wake: func(k Key) { m.woken[k]++ }}
		t.Repeat(map[string]func(*rapid.T){"": m.holds, "work": m.work, "end": m.end, "change": m.change})
		for range 1000 {
			if len(m.inside) == 0 && len(m.woken) == 0 {
				break
			}
			m.leaveAll()
		}
		if len(m.lanes.of) != 0 || len(m.lanes.all) != 0 {
			t.Fatalf("when all is done %d keys are remembered", len(m.lanes.of))
		}
	})
}

type lanesMachine struct {
	lanes  *lanes
	woken  map[Key]int
	inside map[Key]Lane
	wants  map[Key]Lane
}

func (m *lanesMachine) key(t *rapid.T) Key {
	return Key{
		Namespace: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "namespace"),
		Name:      fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "key")),
	}
}

func (m *lanesMachine) lane(t *rapid.T, k Key) Lane {
	return Lane{
		rapid.SampledFrom([]string{"a", "b"}).Draw(t, "driver"),
		rapid.SampledFrom([]string{"create", "delete"}).Draw(t, "call"), k.Namespace,
	}
}

// work is one Reconcile of a key that somebody has asked for.
func (m *lanesMachine) work(t *rapid.T) {
	k := m.key(t)
	if rapid.Bool().Draw(t, "woken") && len(m.woken) > 0 {
		k = slices.SortedFunc(maps.Keys(m.woken), func(a, b Key) int { return len(a.String()) - len(b.String()) })[0]
	}
	if _, busy := m.inside[k]; busy {
		return
	}
	if _, known := m.wants[k]; !known {
		m.wants[k] = m.lane(t, k)
	}
	m.reconcile(k)
}

func (m *lanesMachine) reconcile(k Key) {
	delete(m.woken, k)
	m.lanes.begin(k)
	lane, wants := m.wants[k]
	if wants {
		if ok, _ := m.lanes.enter(k, lane); ok {
			m.inside[k] = lane
			return
		}
	}
	m.lanes.end(k)
}

func (m *lanesMachine) end(t *rapid.T) {
	all := slices.SortedFunc(maps.Keys(m.inside),
		func(a, b Key) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	if len(all) > 0 {
		m.leave(rapid.SampledFrom(all).Draw(t, "ends"))
	}
}

func (m *lanesMachine) leave(k Key) {
	delete(m.inside, k)
	delete(m.wants, k)
	m.lanes.end(k)
}

// change has a key want something else, or nothing.
func (m *lanesMachine) change(t *rapid.T) {
	k := m.key(t)
	if _, busy := m.inside[k]; busy {
		return
	}
	delete(m.wants, k)
	if rapid.Bool().Draw(t, "wants") {
		m.wants[k] = m.lane(t, k)
	}
	m.reconcile(k)
}

func (m *lanesMachine) leaveAll() {
	for k := range m.inside {
		m.leave(k)
	}
	for k := range m.woken {
		m.reconcile(k)
	}
}

// holds looks at all lanes: who is in one has a place.
func (m *lanesMachine) holds(t *rapid.T) {
	for at, on := range m.lanes.all {
		m.counts(t, at, on)
		for _, n := range on.lines {
			if on.allows(n.namespace, m.lanes.places) || len(n.tickets) == 0 {
				t.Fatalf("%v: %d of namespace %s wait, which has %d of %d places, %d are taken", at, len(n.tickets), n.namespace,
					on.held[n.namespace], m.lanes.places, on.busy)
			}
		}
	}
	for k, lane := range m.inside {
		if ticket := m.lanes.of[k]; ticket == nil || ticket.lane != lane || ticket.state != inside {
			t.Fatalf("%s is in lane %v without a place", k, lane)
		}
	}
}

// counts: a lane has no more than its places, no place is counted twice, and who
// was called was woken.
func (m *lanesMachine) counts(t *rapid.T, at laneKey, on *traffic) {
	busy, held := 0, map[string]int{}
	for k, ticket := range m.lanes.of {
		if ticket.lane.key() != at || ticket.state == queued {
			continue
		}
		busy++
		held[ticket.lane.Namespace]++
		if _, inside := m.inside[k]; !inside && m.woken[k] == 0 {
			t.Fatalf("%s has a place, is not worked on and was not woken", k)
		}
	}
	if busy != on.busy || busy > m.lanes.places || !maps.Equal(held, on.held) {
		t.Fatalf("%v: %d of %d places are taken, by %v; counted are %d, by %v", at, busy, m.lanes.places, held,
			on.busy, on.held)
	}
}
