package queue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestModel adds keys, ends their processing in every way and lets time pass, in
// any order, and checks after each step whether the queue does what it has to:
//   - a key is processed by one worker at a time, and only for a reason: it was
//     added, a pause has ended, or its turn has come;
//   - a key that was added is processed unless all workers are in use, and one
//     that waits for a place unless the lane has none;
//   - no more keys are processed than there are workers and places;
//   - pauses after failures grow up to their bound, and continue to grow while a key
//     waits for a place;
//   - when all is done, nothing is left.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var failure any
		synctest.Test(t, func(*testing.T) {
			// A failure is a panic that only rapid's own goroutine understands.
			defer func() { failure = recover() }()
			checkModel(r)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

func checkModel(t *rapid.T) {
	m := newModel(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.q.Run(ctx)
	}()
	defer func() {
		close(m.quit)
		cancel()
		<-ended
	}()
	t.Repeat(map[string]func(*rapid.T){
		"": m.holds, "add": m.add, "add after": m.addAfter, "done": m.done, "time": m.time, "lane": m.lane,
	})
	m.drain(t)
}

// patience is the pause of a key that waits for its turn.
const patience = 7 * time.Second

type model struct {
	q    *Queue[key]
	quit chan struct{}
	// grants are the keys whose turn has come and that are still queued for it.
	grants sync.Map

	mu sync.Mutex
	// violation is what Process has found.
	violation string
	inFlight  map[key]*flight
	// wants is the lane of each key that enters one.
	wants map[key]Lane
	// pending are the keys that have to be processed.
	pending map[key]bool
	// due is when each key becomes pending, look the same for a key that waits for
	// its turn and is not wanted for another reason.
	due, look map[key]time.Time
	failures  map[key]int
	polls     map[key]int
}

// flight is the processing of one key.
type flight struct {
	holds   bool
	outcome chan outcome
}

type outcome struct {
	result Result
	err    error
}

func newModel(t *rapid.T) *model {
	m := &model{
		quit: make(chan struct{}), inFlight: map[key]*flight{}, wants: map[key]Lane{}, pending: map[key]bool{},
		due: map[key]time.Time{}, look: map[key]time.Time{}, failures: map[key]int{}, polls: map[key]int{},
	}
	m.q = newQueue(Options[key]{
		Process: m.process, Workers: rapid.IntRange(1, 4).Draw(t, "workers"),
		Lanes: Limit{Places: rapid.IntRange(1, 4).Draw(t, "places"), Undivided: rapid.Bool().Draw(t, "undivided")},
		Retry: Backoff{time.Second, 10 * time.Second}, Poll: Backoff{100 * time.Millisecond, 2 * time.Second},
	})
	grant := m.q.lanes.granted
	m.q.lanes.granted = func(k key) {
		m.grants.Store(k, true)
		grant(k)
	}
	return m
}

func (m *model) process(_ context.Context, k key) (Result, error) {
	f, lane, wants := m.start(k)
	if wants {
		ok, waited := m.q.Enter(k, lane)
		if !ok {
			return m.wait(k, max(patience-waited, time.Second)), nil
		}
		m.mu.Lock()
		f.holds = true
		delete(m.look, k)
		m.mu.Unlock()
	}
	select {
	case o := <-f.outcome:
		return o.result, o.err
	case <-m.quit:
		return Result{}, nil
	}
}

// start notes that a key is processed, and judges whether it may be.
func (m *model) start(k key) (f *flight, lane Lane, wants bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tick()
	switch {
	case m.inFlight[k] != nil:
		m.violation = fmt.Sprintf("%s is processed twice at once", k)
	case m.pending[k]:
		delete(m.pending, k)
	default:
		if _, granted := m.grants.LoadAndDelete(k); !granted {
			m.violation = fmt.Sprintf("%s is processed for no reason", k)
		}
	}
	f = &flight{outcome: make(chan outcome)}
	m.inFlight[k] = f
	lane, wants = m.wants[k]
	return f, lane, wants
}

// wait ends the processing of a key that got no place.
func (m *model) wait(k key, pause time.Duration) Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.inFlight, k)
	at := time.Now().Add(pause)
	if due, ok := m.due[k]; ok {
		m.due[k] = sooner(due, at)
	} else if look, ok := m.look[k]; ok {
		m.look[k] = sooner(look, at)
	} else {
		m.look[k] = at
	}
	return Result{After: pause}
}

func sooner(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// tick has the keys become pending whose pause has ended.
func (m *model) tick() {
	for _, times := range []map[key]time.Time{m.due, m.look} {
		for k, at := range times {
			if !time.Now().Before(at) {
				m.pending[k] = true
				delete(times, k)
			}
		}
	}
}

// pause has a key become pending after a pause, or when it is processed sooner
// anyway.
func (m *model) pause(k key, d time.Duration) {
	at := time.Now().Add(d)
	for _, other := range []map[key]time.Time{m.due, m.look} {
		if before, ok := other[k]; ok {
			at = sooner(before, at)
		}
	}
	m.due[k] = at
	delete(m.look, k)
}

func (m *model) key(t *rapid.T) key {
	return key{
		namespace: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "namespace"),
		name:      fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "key")),
	}
}

func (m *model) add(t *rapid.T) {
	k := m.key(t)
	m.mu.Lock()
	m.pending[k] = true
	m.mu.Unlock()
	m.q.Add(k)
}

func (m *model) addAfter(t *rapid.T) {
	k, pause := m.key(t), seconds(t)
	m.mu.Lock()
	m.pause(k, pause)
	m.mu.Unlock()
	m.q.AddAfter(k, pause)
}

func seconds(t *rapid.T) time.Duration {
	return time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second
}

// done ends the processing of one key.
func (m *model) done(t *rapid.T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.inFlight), func(a, b key) int { return cmp.Compare(a.String(), b.String()) })
	if len(keys) == 0 {
		return
	}
	k := rapid.SampledFrom(keys).Draw(t, "done")
	m.tick()
	switch rapid.SampledFrom([]string{"success", "after", "poll", "error"}).Draw(t, "outcome") {
	case "success":
		m.end(k, outcome{})
	case "after":
		after := seconds(t)
		m.pause(k, after)
		m.end(k, outcome{result: Result{After: after}})
	case "poll":
		m.pause(k, m.q.options.Poll.Pause(m.polls[k]))
		m.polls[k]++
		m.end(k, outcome{result: Result{Poll: true}})
	case "error":
		m.pause(k, m.q.options.Retry.Pause(m.failures[k]))
		m.failures[k]++
		m.end(k, outcome{err: errNo})
	}
}

func (m *model) end(k key, o outcome) {
	if o.err == nil && !o.result.Poll {
		delete(m.failures, k)
		delete(m.polls, k)
	}
	m.inFlight[k].outcome <- o
	delete(m.inFlight, k)
}

func (m *model) time(t *rapid.T) { pass(seconds(t)) }

// lane has a key enter another lane when it is processed next, or none.
func (m *model) lane(t *rapid.T) {
	k := m.key(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	if delete(m.wants, k); rapid.Bool().Draw(t, "wants") {
		m.wants[k] = Lane{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "driver"), "create", k.namespace}
	}
}

func (m *model) holds(t *rapid.T) {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	m.tick()
	if m.violation != "" {
		t.Fatal(m.violation)
	}
	counted, taken := 0, map[laneKey]int{}
	for k, f := range m.inFlight {
		switch ticket := m.q.lanes.tickets[k]; {
		case !f.holds:
			counted++
		case ticket.state != overdue:
			taken[ticket.lane.key()]++
		}
	}
	if counted > m.q.options.Workers {
		t.Fatalf("%d keys are processed by %d workers", counted, m.q.options.Workers)
	}
	for lane, n := range taken {
		if n > m.q.options.Lanes.Places {
			t.Fatalf("%v: %d keys hold %d places", lane, n, m.q.options.Lanes.Places)
		}
	}
	m.grants.Range(func(k, _ any) bool {
		if e := m.q.keys[k.(key)]; e == nil || e.state != queued && e.state != dirty {
			m.grants.Delete(k)
		}
		return true
	})
	m.nothingIsLost(t, counted < m.q.options.Workers)
}

// nothingIsLost checks all keys that are not processed; free says that a worker is.
func (m *model) nothingIsLost(t *rapid.T, free bool) {
	for k := range m.pending {
		if m.inFlight[k] == nil && free {
			t.Fatalf("%s was added, and is not processed although a worker is free", k)
		}
	}
	for k, ticket := range m.q.lanes.tickets {
		at := m.q.lanes.all[ticket.lane.key()]
		switch {
		case ticket.state == waiting && at.places.allows(ticket.lane.Namespace,
			m.q.options.Lanes.Places, m.q.options.Lanes.Undivided):
			t.Fatalf("%s waits for a place that is free", k)
		case ticket.state == granted && m.inFlight[k] == nil && free:
			t.Fatalf("it is the turn of %s, and it is not processed although a worker is free", k)
		}
	}
	m.pausesAreBounded(t)
}

func (m *model) pausesAreBounded(t *rapid.T) {
	for k, e := range m.q.keys {
		if int(e.failures) != m.failures[k] || int(e.polls) != m.polls[k] {
			t.Fatalf("%s: %d failures and %d polls, want %d and %d", k, e.failures, e.polls, m.failures[k], m.polls[k])
		}
		if e.timer != nil && time.Until(e.due) > 20*time.Second {
			t.Fatalf("%s has a pause of %s", k, time.Until(e.due))
		}
	}
}

// drain ends everything well, and finds nothing left.
func (m *model) drain(t *rapid.T) {
	for range 1000 {
		m.holds(t)
		m.mu.Lock()
		rest := len(m.inFlight) + len(m.pending) + len(m.due) + len(m.look)
		for k := range m.inFlight {
			m.end(k, outcome{})
		}
		m.mu.Unlock()
		if rest == 0 {
			break
		}
		settle(time.Second)
	}
	m.q.mu.Lock()
	defer m.q.mu.Unlock()
	if len(m.q.keys) != 0 || len(m.q.lanes.tickets) != 0 || len(m.q.lanes.all) != 0 || m.q.free != m.q.options.Workers {
		t.Fatalf("left are %d keys, %d tickets, %d lanes and %d workers", len(m.q.keys), len(m.q.lanes.tickets),
			len(m.q.lanes.all), m.q.options.Workers-m.q.free)
	}
}
