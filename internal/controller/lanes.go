package controller

import (
	"slices"
	"sync"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// Lane is what the calls of one kind at one driver have in common: they share
// places, and no other calls take any of them. Namespace is on whose behalf a
// call is made.
type Lane struct{ Driver, Call, Namespace string }

// lanes bound the calls that are under way, each kind at each driver by itself:
// a driver that does not answer holds up nobody but who waits for it. A
// namespace may have as many places of a lane as are free there, so that the
// first one gets half of them, and there is room for the next one however many
// calls hang. What gets no place waits here, without a goroutine, and is woken
// in its turn: the namespaces in a circle, the keys of each as they came.
type lanes struct {
	places int
	wake   func(Key)

	mu  sync.Mutex
	all map[laneKey]*traffic
	of  map[Key]*ticket
}

// laneKey is a lane, whoever is in it.
type laneKey struct{ driver, call string }

// busy explains why a call is not made yet, in the same words to all that wait.
func (l Lane) busy() volume.Because {
	return volume.Because{
		Reason: volume.ReasonDriverBusy, Next: l.Driver,
		Message: "driver " + l.Driver + " works on as many calls to " + l.Call +
			" volumes as may be under way at once; this one waits for its turn",
	}
}

func (l Lane) key() laneKey { return laneKey{l.Driver, l.Call} }

// traffic is what is under way in a lane, and what waits for it.
type traffic struct {
	busy int
	// held are the places that namespaces have.
	held  map[string]int
	lines []*line
}

// line are the keys of one namespace that wait.
type line struct {
	namespace string
	tickets   []*ticket
}

// ticket is a key's claim to a place.
type ticket struct {
	key   Key
	lane  Lane
	since time.Time
	state turn
	// asked says that the work on the key that is under way has asked for it.
	asked bool
}

type turn int

const (
	// queued waits for its turn.
	queued turn = iota
	// called has a place, and is to be worked on again.
	called
	// inside has a place until the work on it that is under way ends.
	inside
)

// begin says that work on a key begins.
func (l *lanes) begin(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.of[k]; t != nil {
		t.asked = false
		if t.state == called {
			t.state = inside
		}
	}
}

// enter says whether the work on a key may go on in a lane, and for how long it
// has waited if not.
func (l *lanes) enter(k Key, lane Lane) (ok bool, waited time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.of[k]
	if t != nil && t.lane != lane {
		l.drop(t)
		t = nil
	}
	if t == nil {
		t = l.ticket(k, lane)
	}
	if t.asked = true; t.state == called {
		// Its turn has come since it has begun; it is woken for nothing.
		t.state = inside
	}
	return t.state == inside, time.Since(t.since)
}

// ticket gives a key a place in a lane, or in the line.
func (l *lanes) ticket(k Key, lane Lane) *ticket {
	t, on := &ticket{key: k, lane: lane, since: time.Now()}, l.on(lane.key())
	l.of[k] = t
	if on.allows(lane.Namespace, l.places) {
		on.take(t, inside)
		return t
	}
	i := slices.IndexFunc(on.lines, func(n *line) bool { return n.namespace == lane.Namespace })
	if i < 0 {
		i = len(on.lines)
		on.lines = append(on.lines, &line{namespace: lane.Namespace})
	}
	on.lines[i].tickets = append(on.lines[i].tickets, t)
	return t
}

// end says that work on a key has ended, which gives its place back, and whether
// it waits for one. What has not asked again does not want it any more.
func (l *lanes) end(k Key) (waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.of[k]
	if t == nil {
		return false
	}
	if t.state == inside || t.state == queued && !t.asked {
		l.drop(t)
		return false
	}
	return true
}

// drop takes back a ticket, and gives its place to the next one.
func (l *lanes) drop(t *ticket) {
	delete(l.of, t.key)
	at := t.lane.key()
	on := l.all[at]
	if t.state == queued {
		on.leave(t)
	} else {
		on.give(t.lane.Namespace)
		for next := on.next(l.places); next != nil; next = on.next(l.places) {
			on.take(next, called)
			l.wake(next.key)
		}
	}
	if on.busy == 0 && len(on.lines) == 0 {
		delete(l.all, at)
	}
}

func (l *lanes) on(c laneKey) *traffic {
	if l.all == nil {
		l.all, l.of = map[laneKey]*traffic{}, map[Key]*ticket{}
	}
	if l.all[c] == nil {
		l.all[c] = &traffic{held: map[string]int{}}
	}
	return l.all[c]
}

// allows says whether a namespace may have one more of so many places.
func (t *traffic) allows(namespace string, places int) bool {
	return t.held[namespace] < places-t.busy
}

func (t *traffic) take(k *ticket, state turn) {
	k.state = state
	t.busy++
	t.held[k.lane.Namespace]++
}

func (t *traffic) give(namespace string) {
	t.busy--
	if t.held[namespace]--; t.held[namespace] == 0 {
		delete(t.held, namespace)
	}
}

// next takes out of the lines whose turn it is; nil is nobody.
func (t *traffic) next(places int) *ticket {
	i := slices.IndexFunc(t.lines, func(n *line) bool { return t.allows(n.namespace, places) })
	if i < 0 {
		return nil
	}
	n := t.lines[i]
	first := n.tickets[0]
	n.tickets[0], n.tickets = nil, n.tickets[1:]
	if t.lines = slices.Delete(t.lines, i, i+1); len(n.tickets) > 0 {
		t.lines = append(t.lines, n)
	}
	return first
}

// leave takes a ticket out of its line.
func (t *traffic) leave(k *ticket) {
	i := slices.IndexFunc(t.lines, func(n *line) bool { return n.namespace == k.lane.Namespace })
	n := t.lines[i]
	at := slices.Index(n.tickets, k)
	if n.tickets = slices.Delete(n.tickets, at, at+1); len(n.tickets) == 0 {
		t.lines = slices.Delete(t.lines, i, i+1)
	}
}
