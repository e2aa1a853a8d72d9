package queue

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestLanes is a state machine that starts and ends work on keys, some of which change
// what they want, and checks what must hold at any time.
func TestLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &lanesMachine{woken: map[key]int{}, inside: map[key]Lane{}, wants: map[key]Lane{}}
		m.lanes = &lanes[key]{
			limit: Limit{
				Places:    rapid.IntRange(1, 9).Draw(t, "places"),
				Undivided: rapid.Bool().Draw(t, "undivided"), Firm: rapid.Bool().Draw(t, "firm"),
			},
			granted: func(k key) { m.woken[k]++ },
		}
		t.Repeat(map[string]func(*rapid.T){"": m.holds, "work": m.work, "end": m.end, "change": m.change, "late": m.late})
		for range 1000 {
			if len(m.inside) == 0 && len(m.woken) == 0 {
				break
			}
			m.leaveAll()
		}
		if len(m.lanes.tickets) != 0 || len(m.lanes.all) != 0 {
			t.Fatalf("when all is done %d keys are remembered", len(m.lanes.tickets))
		}
	})
}

type lanesMachine struct {
	lanes  *lanes[key]
	woken  map[key]int
	inside map[key]Lane
	wants  map[key]Lane
}

func (m *lanesMachine) key(t *rapid.T) key {
	return key{
		namespace: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "namespace"),
		name:      fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "key")),
	}
}

func (m *lanesMachine) lane(t *rapid.T, k key) Lane {
	return Lane{
		rapid.SampledFrom([]string{"a", "b"}).Draw(t, "driver"),
		rapid.SampledFrom([]string{"create", "delete"}).Draw(t, "call"), k.namespace,
	}
}

// work is one Reconcile of a key that was added.
func (m *lanesMachine) work(t *rapid.T) {
	k := m.key(t)
	if rapid.Bool().Draw(t, "woken") && len(m.woken) > 0 {
		k = slices.SortedFunc(maps.Keys(m.woken), func(a, b key) int { return len(a.String()) - len(b.String()) })[0]
	}
	if _, busy := m.inside[k]; busy {
		return
	}
	if _, known := m.wants[k]; !known {
		m.wants[k] = m.lane(t, k)
	}
	m.reconcile(k, rapid.Bool().Draw(t, "slow"))
}

func (m *lanesMachine) reconcile(k key, slow bool) {
	delete(m.woken, k)
	m.lanes.processing(k)
	lane, wants := m.wants[k]
	if wants {
		if ok, _ := m.lanes.enter(k, lane, slow); ok {
			m.inside[k] = lane
			return
		}
	}
	m.lanes.processed(k)
}

func (m *lanesMachine) end(t *rapid.T) {
	all := slices.SortedFunc(maps.Keys(m.inside),
		func(a, b key) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	if len(all) > 0 {
		m.leave(rapid.SampledFrom(all).Draw(t, "ends"))
	}
}

func (m *lanesMachine) leave(k key) {
	delete(m.inside, k)
	delete(m.wants, k)
	m.lanes.processed(k)
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
	m.reconcile(k, false)
}

// late is a call that does not return.
func (m *lanesMachine) late(t *rapid.T) {
	all := slices.SortedFunc(maps.Keys(m.inside), func(a, b key) int { return strings.Compare(a.String(), b.String()) })
	if len(all) > 0 {
		m.lanes.giveBack(m.lanes.tickets[rapid.SampledFrom(all).Draw(t, "hangs")])
	}
}

func (m *lanesMachine) leaveAll() {
	for k := range m.inside {
		m.leave(k)
	}
	for k := range m.woken {
		m.reconcile(k, false)
	}
}

// holds checks all lanes: each key in one has a place.
func (m *lanesMachine) holds(t *rapid.T) {
	for at, on := range m.lanes.all {
		m.counts(t, at, on)
		for _, n := range on.lines {
			if on.places.allows(n.namespace, m.lanes.limit.Places, m.lanes.limit.Undivided) || len(n.tickets) == 0 {
				t.Fatalf("%v: %d of namespace %s wait, which has %d of %d places, %d are taken", at, len(n.tickets), n.namespace,
					on.places.held[n.namespace], m.lanes.limit.Places, on.places.taken)
			}
		}
	}
	for k, lane := range m.inside {
		if ticket := m.lanes.tickets[k]; ticket == nil || ticket.lane != lane || ticket.state < holding {
			t.Fatalf("%s is in lane %v without a place", k, lane)
		}
	}
}

// counts: a lane has no more than its places, no place is counted twice, and a key that
// was granted a place was woken.
func (m *lanesMachine) counts(t *rapid.T, at laneKey, on *lane[key]) {
	var places, late share
	for k, ticket := range m.lanes.tickets {
		switch {
		case ticket.lane.key() != at || ticket.state == waiting:
			continue
		case ticket.state == overdue:
			late.take(ticket.lane.Namespace)
		default:
			places.take(ticket.lane.Namespace)
		}
		if _, inside := m.inside[k]; !inside && m.woken[k] == 0 {
			t.Fatalf("%s has a place, is not worked on and was not woken", k)
		}
	}
	if !same(places, on.places) || !same(late, on.overdue) {
		t.Fatalf("%v: counted are %+v and %+v, held %+v and %+v", at, places, late, on.places, on.overdue)
	}
	if places.taken > m.lanes.limit.Places || late.taken > 0 && m.lanes.limit.Firm {
		t.Fatalf("%v: %d of %d places are taken, %d more are overdue", at, places.taken, m.lanes.limit.Places, late.taken)
	}
}

func same(a, b share) bool { return a.taken == b.taken && maps.Equal(a.held, b.held) }
