package queue

import (
	"slices"
	"time"
)

// Lane is a kind of call to a driver. The calls of a lane share its places. Namespace is the
// namespace on whose behalf a call is made.
type Lane struct{ Driver, Call, Namespace string }

// Limit bounds how many keys are processed at once in a lane.
type Limit struct {
	// Places is the number of keys that hold a place at once; 0 means 1.
	Places int
	// Undivided lets one namespace hold all places. Otherwise a namespace holds at most as many
	// places as are free: the first one gets half of them, and there are places for the next one
	// even if all calls of the first one hang.
	Undivided bool
}

// lanes bounds the keys in flight in each lane separately, so that a driver that does not answer
// delays only the keys that need it. A key without a place waits here, without a goroutine: round
// robin over the namespaces, first in first out within each. The queue's lock protects it.
type lanes[K comparable] struct {
	limit Limit
	// granted is called with a waiting key that has got a place, so that it is processed.
	granted func(K)
	// all holds the lanes with keys.
	all map[laneKey]*lane[K]
	// tickets holds the ticket of each key that waits or has a place.
	tickets map[K]*ticket[K]
}

// laneKey is a Lane without its namespace.
type laneKey struct{ driver, call string }

func (l Lane) key() laneKey { return laneKey{l.Driver, l.Call} }

// lane is the state of one lane.
type lane[K comparable] struct {
	// taken is the number of places that are held.
	taken int
	// held is the number of places that each namespace holds.
	held map[string]int
	// lines holds the waiting keys of each namespace, in the order of their turns.
	lines []*line[K]
}

type line[K comparable] struct {
	namespace string
	tickets   []*ticket[K]
}

// ticket is the request of a key for a place.
type ticket[K comparable] struct {
	key  K
	lane Lane
	// since is when the ticket was created.
	since time.Time
	state ticketState
	// entered says whether Enter was called since the processing of the key started.
	entered bool
}

type ticketState uint8

const (
	// waiting means that the ticket is in a line.
	waiting ticketState = iota
	// granted means that the key has a place but has not called Enter since: it is queued, or is
	// being processed for another reason.
	granted
	// holding means that the key has a place until it has been processed.
	holding
)

// processing is called when the processing of a key starts.
func (l *lanes[K]) processing(k K) {
	if t := l.tickets[k]; t != nil {
		t.entered = false
	}
}

// enter says whether a key holds a place in a lane, and for how long it has waited if not.
func (l *lanes[K]) enter(k K, in Lane) (ok bool, waited time.Duration) {
	t := l.tickets[k]
	if t != nil && t.lane != in {
		l.drop(t)
		t = nil
	}
	if t == nil {
		t = l.ticket(k, in)
	}
	if t.entered = true; t.state == granted {
		t.state = holding
	}
	return t.state == holding, time.Since(t.since)
}

// ticket creates the ticket of a key, with a place or at the end of its namespace's line.
func (l *lanes[K]) ticket(k K, in Lane) *ticket[K] {
	t, at := &ticket[K]{key: k, lane: in, since: time.Now()}, l.lane(in.key())
	l.tickets[k] = t
	if at.allows(in.Namespace, l.limit) {
		at.take(t, holding)
		return t
	}
	i := slices.IndexFunc(at.lines, func(n *line[K]) bool { return n.namespace == in.Namespace })
	if i < 0 {
		i = len(at.lines)
		at.lines = append(at.lines, &line[K]{namespace: in.Namespace})
	}
	at.lines[i].tickets = append(at.lines[i].tickets, t)
	return t
}

// processed is called when a key has been processed. It releases the key's place, and says whether
// the key waits for one. A key that has not called Enter does not need a place any more.
func (l *lanes[K]) processed(k K) (waits bool) {
	t := l.tickets[k]
	if t == nil {
		return false
	}
	if t.state == holding || !t.entered {
		l.drop(t)
		return false
	}
	return true
}

// drop removes a ticket, and grants its place to the next keys.
func (l *lanes[K]) drop(t *ticket[K]) {
	delete(l.tickets, t.key)
	key := t.lane.key()
	at := l.all[key]
	if t.state == waiting {
		at.leave(t)
	} else {
		at.release(t.lane.Namespace)
		for next := at.next(l.limit); next != nil; next = at.next(l.limit) {
			at.take(next, granted)
			l.granted(next.key)
		}
	}
	if at.taken == 0 {
		delete(l.all, key) // while all places are free, no key waits
	}
}

func (l *lanes[K]) lane(key laneKey) *lane[K] {
	if l.all == nil {
		l.all, l.tickets = map[laneKey]*lane[K]{}, map[K]*ticket[K]{}
	}
	if l.all[key] == nil {
		l.all[key] = &lane[K]{held: map[string]int{}}
	}
	return l.all[key]
}

// allows says whether a namespace may hold one more place.
func (a *lane[K]) allows(namespace string, limit Limit) bool {
	free := limit.Places - a.taken
	if limit.Undivided {
		return free > 0
	}
	return a.held[namespace] < free
}

func (a *lane[K]) take(t *ticket[K], state ticketState) {
	t.state = state
	a.taken++
	a.held[t.lane.Namespace]++
}

func (a *lane[K]) release(namespace string) {
	a.taken--
	if a.held[namespace]--; a.held[namespace] == 0 {
		delete(a.held, namespace)
	}
}

// next removes the ticket that may take a place next from its line, and returns it, or nil.
func (a *lane[K]) next(limit Limit) *ticket[K] {
	i := slices.IndexFunc(a.lines, func(n *line[K]) bool { return a.allows(n.namespace, limit) })
	if i < 0 {
		return nil
	}
	n := a.lines[i]
	first := n.tickets[0]
	n.tickets[0], n.tickets = nil, n.tickets[1:]
	if a.lines = slices.Delete(a.lines, i, i+1); len(n.tickets) > 0 {
		a.lines = append(a.lines, n)
	}
	return first
}

// leave removes a ticket from its line.
func (a *lane[K]) leave(t *ticket[K]) {
	i := slices.IndexFunc(a.lines, func(n *line[K]) bool { return n.namespace == t.lane.Namespace })
	n := a.lines[i]
	at := slices.Index(n.tickets, t)
	if n.tickets = slices.Delete(n.tickets, at, at+1); len(n.tickets) == 0 {
		a.lines = slices.Delete(a.lines, i, i+1)
	}
}
