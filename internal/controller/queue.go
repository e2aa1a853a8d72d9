package controller

import (
	"sync"
	"time"

	"volplane.dev/volplane/internal/kube"
)

// manyKeys is the number of keys whose memory is worth giving back.
const manyKeys = 1000

// queue has keys worked on, each by one goroutine at a time: what is asked for
// while it is worked on comes again after that. There are goroutines only while
// there is work, and what is remembered of a key ends with it: controllers rest
// most of the time, after a start that asked for all there is.
type queue struct {
	// shortest and longest bound the pause after a failure.
	shortest, longest time.Duration

	mu    sync.Mutex
	ready []Key
	keys  map[Key]*entry
	// most is how many keys there have been at once since there were none.
	most int
	// work does one key; nil is not yet, or not any more.
	work func(Key)
	// free is how many more keys may be worked on at once.
	free    int
	workers sync.WaitGroup
	closed  bool
}

// entry is one key that waits, is worked on, or comes again.
type entry struct {
	state state
	// failures is how often it has failed since it went well.
	failures int
	// later brings the key back at a time.
	later *time.Timer
	at    time.Time
	// patience says that it only does so because the key waits for its turn.
	patience bool
	// apart says that the work on it is not counted.
	apart bool
}

type state int

const (
	idle state = iota
	waiting
	working
	// again is worked on, and asked for meanwhile.
	again
)

// start begins to work on keys, so many at once.
func (q *queue) start(workers int, work func(Key)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free, q.work = workers, work
	for range min(workers, len(q.ready)) {
		q.begin()
	}
}

// stop returns when nothing is worked on any more. What waits is left.
func (q *queue) stop() {
	q.mu.Lock()
	q.closed, q.work = true, nil
	for _, e := range q.keys {
		if e.later != nil {
			e.later.Stop()
		}
	}
	q.mu.Unlock()
	q.workers.Wait()
}

// add asks for a key to be worked on.
func (q *queue) add(k Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(k, q.entry(k))
}

// addAfter asks for a key to be worked on after a pause, if it is not sooner.
func (q *queue) addAfter(k Key, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.putAfter(k, q.entry(k), pause)
}

// addPatience is addAfter of a key that waits for its turn; when that comes, there
// is nothing to look at later.
func (q *queue) addPatience(k Key, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entry(k)
	before := e.later
	if q.putAfter(k, e, pause); e.later != before {
		e.patience = true
	}
}

// failed asks for a key again after a pause that grows, and returns how often
// it has failed.
func (q *queue) failed(k Key) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.entry(k)
	q.putAfter(k, e, kube.Backoff(e.failures, q.shortest, q.longest))
	e.failures++
	return e.failures
}

// went ends the failures of a key.
func (q *queue) went(k Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.entry(k).failures = 0
}

func (q *queue) entry(k Key) *entry {
	e := q.keys[k]
	if e == nil {
		e = &entry{}
		if q.keys == nil {
			q.keys = map[Key]*entry{}
		}
		q.keys[k] = e
		q.most = max(q.most, len(q.keys))
	}
	return e
}

func (q *queue) put(k Key, e *entry) {
	switch e.state {
	case idle:
		e.state = waiting
		q.ready = append(q.ready, k)
		q.begin()
	case working:
		e.state = again
	case waiting, again:
	}
}

func (q *queue) putAfter(k Key, e *entry, pause time.Duration) {
	at := time.Now().Add(pause)
	if q.closed || e.later != nil && !at.Before(e.at) {
		return
	}
	if e.later != nil {
		e.later.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(pause, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if e.later == timer {
			e.later = nil
			q.put(k, e)
		}
	})
	e.later, e.at, e.patience = timer, at, false
}

// begin has one more goroutine work if that is allowed.
func (q *queue) begin() {
	if q.work == nil || q.free == 0 {
		return
	}
	q.free--
	q.workers.Go(func() {
		for {
			k, work := q.next()
			if work == nil {
				return
			}
			work(k)
			if !q.done(k) {
				return
			}
		}
	})
}

// apart has the work on a key that is under way not count any more: its turn has
// come, and something else bounds it.
func (q *queue) apart(k Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.keys[k]
	if e == nil || e.apart || e.state != working && e.state != again {
		return
	}
	if e.patience && e.later != nil {
		// It would come back when all is done, to caches that do not show it yet.
		e.later.Stop()
		e.later, e.patience = nil, false
	}
	e.apart = true
	if q.free++; len(q.ready) > 0 {
		q.begin()
	}
}

// next returns a key and the work to be done on it, if there is any.
func (q *queue) next() (k Key, work func(Key)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.work == nil || len(q.ready) == 0 {
		q.free++
		return k, nil
	}
	k, q.ready[0] = q.ready[0], Key{}
	if q.ready = q.ready[1:]; len(q.ready) == 0 {
		q.ready = nil
	}
	q.keys[k].state = working
	return k, q.work
}

// done ends the work on a key, and says whether who did it goes on: what was
// not counted may be one too many now.
func (q *queue) done(k Key) (goesOn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.keys[k]
	goesOn = true
	if e.apart {
		e.apart = false
		if goesOn = q.free > 0; goesOn {
			q.free--
		}
	}
	q.rest(k, e)
	return goesOn
}

// rest forgets a key on which the work has ended, if nothing is to be remembered.
func (q *queue) rest(k Key, e *entry) {
	if e.state == again {
		e.state = waiting
		q.ready = append(q.ready, k)
		return
	}
	if e.state = idle; e.failures > 0 || e.later != nil {
		return
	}
	delete(q.keys, k)
	if len(q.keys) == 0 && q.most > manyKeys {
		// A map does not shrink.
		q.keys, q.most = nil, 0
	}
}
