package queue

import (
	"slices"
	"time"
)

// Lane is a kind of call to a driver. The calls of a lane share its places. Namespace is the
// namespace on whose behalf a call is made.
type Lane struct{ Driver, Call, Namespace string }

// callPatience is how long a key holds its place. Then the next key gets it, because the call probably hangs, and calls
// for other volumes need not.
const callPatience = 30 * time.Second

// slowCall is how long a call takes that is slow. If it fails, the next one of its key takes no place from others.
// This is for calls with a limit below callPatience, which would otherwise hold all places in turn.
const slowCall = 10 * time.Second

// overduePlaces is the number of keys of a lane that are processed although their places have been given to others; a
// lane with more places may have as many again. It bounds the goroutines of a driver that never answers.
const overduePlaces = 128

// Limit bounds how many keys are processed at the same time in a lane.
type Limit struct {
	// Places is the number of keys that hold a place at the same time; 0 means 1.
	Places int
	// Undivided lets one namespace hold all places. Otherwise a namespace holds at most as many
	// places as are free: the first one gets half of them, and there are places for the next one
	// even if all calls of the first one hang.
	Undivided bool
	// Firm means that no place is given to another key before its own key has been processed.
	Firm bool
}

// lanes bounds the keys in flight in each lane separately, so that a driver that does not answer
// delays only the keys that need it. A key without a place waits here, without a goroutine: round
// robin over the namespaces, first in first out within each. The queue's lock protects it.
type lanes[K comparable] struct {
	limit Limit
	// granted is called with a waiting key that has got a place, so that it is processed.
	granted func(K)
	// late is called, without the lock, with a ticket whose key has held its place for longer than callPatience.
	late func(*ticket[K])
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
	places share
	// overdue counts the keys whose places have been given to others.
	overdue share
	// lines holds the waiting keys of each namespace, in the order of their turns.
	lines []*line[K]
}

// share is a number of places that are held.
type share struct {
	taken int
	// held is the number of places that each namespace holds.
	held map[string]int
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
	// begun is when the key was first allowed to make its call.
	begun time.Time
	// timer calls lanes.late.
	timer *time.Timer
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
	// overdue means that the key is being processed, and that its place has been given to another one.
	overdue
)

// processing is called when the processing of a key starts.
func (l *lanes[K]) processing(k K) {
	if t := l.tickets[k]; t != nil {
		t.entered = false
	}
}

// enter says whether a key may make its call in a lane, and for how long it has waited if not. slow says that the key's
// last call was slow and failed: the key is overdue from the start, so that it does not delay others again.
func (l *lanes[K]) enter(k K, in Lane, slow bool) (ok bool, waited time.Duration) {
	t := l.tickets[k]
	if t != nil && t.lane != in {
		l.drop(t)
		t = nil
	}
	if t == nil {
		t = l.ticket(k, in, slow)
	}
	if t.entered = true; t.state == granted {
		t.state = holding
	}
	if t.state == waiting {
		return false, time.Since(t.since)
	}
	if t.begun.IsZero() {
		t.begun = time.Now()
		l.watch(t)
	}
	return true, 0
}

// ticket creates the ticket of a key, with a place or at the end of its namespace's line.
func (l *lanes[K]) ticket(k K, in Lane, slow bool) *ticket[K] {
	t, at := &ticket[K]{key: k, lane: in, since: time.Now()}, l.lane(in.key())
	l.tickets[k] = t
	if slow && l.allowsOverdue(at, in.Namespace) {
		t.state = overdue
		at.overdue.take(in.Namespace)
		return t
	}
	if at.places.allows(in.Namespace, l.limit.Places, l.limit.Undivided) {
		t.state = holding
		at.places.take(in.Namespace)
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

// watch has late called when the key of a ticket has held its place for long.
func (l *lanes[K]) watch(t *ticket[K]) {
	if l.late != nil && !l.limit.Firm && t.state == holding {
		t.timer = time.AfterFunc(callPatience, func() { l.late(t) })
	}
}

// giveBack grants the place of a key that has held it for long to the next keys. While too many are overdue, the key
// keeps its place, and the caller tries again later.
func (l *lanes[K]) giveBack(t *ticket[K]) (given bool) {
	if l.tickets[t.key] != t || t.state != holding {
		return false
	}
	at, namespace := l.lane(t.lane.key()), t.lane.Namespace
	if !l.allowsOverdue(at, namespace) {
		l.watch(t)
		return false
	}
	t.state = overdue
	at.overdue.take(namespace)
	at.places.release(namespace)
	l.grant(at)
	return true
}

func (l *lanes[K]) allowsOverdue(at *lane[K], namespace string) bool {
	return !l.limit.Firm && at.overdue.allows(namespace, max(overduePlaces, l.limit.Places), l.limit.Undivided)
}

// processed is called when a key has been processed. It releases the key's place, and says whether
// the key waits for one, and whether its call was slow. A key that has not called Enter does not need a place any more.
func (l *lanes[K]) processed(k K) (waits, slow bool) {
	t := l.tickets[k]
	if t == nil {
		return false, false
	}
	if t.entered && t.begun.IsZero() {
		return true, false
	}
	l.drop(t)
	return false, !t.begun.IsZero() && time.Since(t.begun) >= slowCall
}

// drop removes a ticket, and grants its place to the next keys.
func (l *lanes[K]) drop(t *ticket[K]) {
	delete(l.tickets, t.key)
	if t.timer != nil {
		t.timer.Stop()
	}
	key := t.lane.key()
	at := l.all[key]
	switch t.state {
	case waiting:
		at.leave(t)
	case overdue:
		at.overdue.release(t.lane.Namespace)
	case granted, holding:
		at.places.release(t.lane.Namespace)
		l.grant(at)
	}
	if at.places.taken == 0 && at.overdue.taken == 0 {
		delete(l.all, key) // while all places are free, no key waits
	}
}

// grant gives the free places of a lane to the keys that wait.
func (l *lanes[K]) grant(at *lane[K]) {
	for next := at.next(l.limit); next != nil; next = at.next(l.limit) {
		next.state = granted
		at.places.take(next.lane.Namespace)
		l.granted(next.key)
	}
}

func (l *lanes[K]) lane(key laneKey) *lane[K] {
	if l.all == nil {
		l.all, l.tickets = map[laneKey]*lane[K]{}, map[K]*ticket[K]{}
	}
	if l.all[key] == nil {
		l.all[key] = &lane[K]{}
	}
	return l.all[key]
}

// allows says whether a namespace may hold one more of a number of places.
func (s *share) allows(namespace string, places int, undivided bool) bool {
	free := places - s.taken
	if undivided {
		return free > 0
	}
	return s.held[namespace] < free
}

func (s *share) take(namespace string) {
	if s.held == nil {
		s.held = map[string]int{}
	}
	s.taken++
	s.held[namespace]++
}

func (s *share) release(namespace string) {
	s.taken--
	if s.held[namespace]--; s.held[namespace] == 0 {
		delete(s.held, namespace)
	}
}

// next removes the ticket that may take a place next from its line, and returns it, or nil.
func (a *lane[K]) next(limit Limit) *ticket[K] {
	i := slices.IndexFunc(a.lines, func(n *line[K]) bool {
		return a.places.allows(n.namespace, limit.Places, limit.Undivided)
	})
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
