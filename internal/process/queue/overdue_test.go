package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestHangingCallGivesItsPlaceBack has calls fill the lane of a driver that hang until their limit, again and again.
// Others of the same namespace are called nevertheless, later without delay.
func TestHangingCallGivesItsPlaceBack(t *testing.T) {
	const places = 16
	lanes := Limit{Places: places, Undivided: true}
	for _, c := range []struct {
		name  string
		hang  int
		limit time.Duration
		lanes Limit
		// first is the longest wait of the first others, and again that of those who come an hour later.
		first, again time.Duration
	}{
		{"as many as there are places", places, 2 * time.Minute, lanes, callPatience, 0},
		{"more than there are places", 4 * places, 2 * time.Minute, lanes, 4 * callPatience, 0},
		{"for ever", places, 1000 * time.Hour, lanes, callPatience, 0},
		{"with a limit below our patience", 4 * places, 15 * time.Second, lanes, 4 * 15 * time.Second, 0},
		{
			"a firm limit", places, 2 * time.Minute,
			Limit{Places: places, Undivided: true, Firm: true},
			2 * time.Minute,
			2 * time.Minute,
		},
		{"half of the places", places, 2 * time.Minute, Limit{Places: places}, 2 * callPatience, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHanging(t, c.lanes, c.limit)
				for i := range c.hang {
					h.q.Add(key{"hangs", "ns", fmt.Sprint(i)})
				}
				synctest.Wait()
				if got := h.others("first"); got > c.first {
					t.Errorf("the first others waited %v, want %v", got, c.first)
				}
				settle(time.Hour)
				if got := h.others("again"); got > c.again {
					t.Errorf("those after an hour waited %v, want %v", got, c.again)
				}
			})
		})
	}
}

// TestOverdueCallsAreBounded has a thousand calls hang forever. No more run than the places and those that may be
// overdue, and one that ends makes room.
func TestOverdueCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHanging(t, Limit{Places: 16, Undivided: true}, 1000*time.Hour)
		for i := range 1000 {
			h.q.Add(key{"hangs", "ns", fmt.Sprint(i)})
		}
		settle(time.Hour)
		if h.most != 16+overduePlaces {
			t.Errorf("%d calls at once, want %d", h.most, 16+overduePlaces)
		}
	})
}

// TestOneNamespaceLeavesOverduePlaces has the calls of one namespace hang. Those of another one still give their places
// back.
func TestOneNamespaceLeavesOverduePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHanging(t, Limit{Places: 16}, 1000*time.Hour)
		for i := range 1000 {
			h.q.Add(key{"hangs", "one", fmt.Sprint(i)})
		}
		settle(time.Hour)
		for i := range 16 {
			h.q.Add(key{"hangs", "ns", fmt.Sprint(i)})
		}
		synctest.Wait()
		if got := h.others("another namespace's"); got > 4*callPatience {
			t.Errorf("they waited %v", got)
		}
	})
}

// TestOverdueKeyIsNotProcessedTwice adds a key again while its call is overdue.
func TestOverdueKeyIsNotProcessedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHanging(t, Limit{Places: 2, Undivided: true}, time.Hour)
		k := key{"hangs", "ns", "0"}
		for range 100 {
			h.q.Add(k)
			settle(time.Minute)
		}
		if h.most != 1 {
			t.Errorf("%d calls for one key at once", h.most)
		}
	})
}

// hanging is a queue in which each call of kind "hangs" takes until its limit, and fails.
type hanging struct {
	t *testing.T
	q *Queue[key]

	mu         sync.Mutex
	busy, most int
	done       map[string]bool
}

func newHanging(t *testing.T, l Limit, limit time.Duration) *hanging {
	t.Helper()
	h := &hanging{t: t, done: map[string]bool{}}
	h.q = queueOf(Options[key]{Lanes: l, Retry: Backoff{500 * time.Millisecond, 2 * time.Minute}},
		func(ctx context.Context, q *Queue[key], k key) (Result, error) {
			if !enters(q, k, Lane{"d", "call", k.namespace}) {
				return Result{}, nil
			}
			h.count(1)
			defer h.count(-1)
			if k.kind == "hangs" {
				select {
				case <-ctx.Done():
				case <-time.After(limit):
				}
				return Result{}, errNo
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.done[k.name] = true
			return Result{}, nil
		})
	run(t, h.q)
	return h
}

func (h *hanging) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy += n
	h.most = max(h.most, h.busy)
}

// others adds a hundred keys whose calls do not hang, and returns how long it takes until all are done.
func (h *hanging) others(name string) time.Duration {
	h.t.Helper()
	begin := time.Now()
	for i := range 100 {
		h.q.Add(key{"answers", "ns", fmt.Sprint(name, i)})
	}
	for range 3600 {
		synctest.Wait()
		if h.all(name) {
			return time.Since(begin)
		}
		pass(time.Second)
	}
	h.t.Fatalf("%s keys wait for ever", name)
	return 0
}

func (h *hanging) all(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for k := range h.done {
		if strings.HasPrefix(k, name) {
			n++
		}
	}
	return n == 100
}
