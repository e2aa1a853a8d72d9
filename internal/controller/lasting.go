package controller

import (
	"sync"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// tellAfter is how long a state that most objects leave within milliseconds has to last until it is worth a write.
const tellAfter = time.Second

// lasting remembers since when keys have been in such a state.
type lasting struct {
	mu    sync.Mutex
	since map[Key]stay
}

// stay is a state and the time at which it began. asked means that Reconcile has called Lasts for it.
type stay struct {
	reason volume.Reason
	begin  time.Time
	asked  bool
}

// Lasts is called by Reconcile for a key whose object is in a state that most objects leave within milliseconds. It
// returns how much longer the state must last to be worth an event or another write: 0 means that it is. Otherwise
// nothing should be written, and Reconcile should return the pause as Result.After. A state that Reconcile does not ask
// about the next time is over.
func (c *Controller) Lasts(k Key, r volume.Reason) (pause time.Duration) {
	l := &c.lasting
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.since[k]
	if !known || s.reason != r {
		s = stay{reason: r, begin: time.Now()}
	}
	if pause = tellAfter - time.Since(s.begin); pause <= 0 {
		delete(l.since, k)
		return 0
	}
	if l.since == nil {
		l.since = map[Key]stay{}
	}
	s.asked = true
	l.since[k] = s
	return pause
}

// forget ends the state of a key that has just been reconciled, unless it was asked about.
func (l *lasting) forget(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.since[k]
	switch {
	case known && s.asked:
		s.asked = false
		l.since[k] = s
	case known:
		delete(l.since, k)
	}
}
