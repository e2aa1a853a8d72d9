package driverhost

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"volplane.dev/volplane/internal/process/lifecycle"
)

// lastErrors remembers the last error of each process of each subject, a file or driver. It is safe for concurrent use.
type lastErrors struct {
	mu   sync.Mutex
	last map[string]map[string]string
}

// add remembers an error, and returns all of the subject. It says whether that has changed.
func (t *lastErrors) add(about, by, text string) (all string, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]map[string]string{}
	}
	if t.last[about] == nil {
		t.last[about] = map[string]string{}
	}
	before := t.all(about)
	t.last[about][by] = text
	all = t.all(about)
	return all, all != before
}

// drop forgets the error of a process, or all of a subject if by is "", and returns what is left of the subject. It
// says whether that has changed.
func (t *lastErrors) drop(about, by string) (left string, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.all(about)
	delete(t.last[about], by)
	if by == "" {
		clear(t.last[about])
	}
	if len(t.last[about]) == 0 {
		delete(t.last, about)
	}
	left = t.all(about)
	return left, left != before
}

// subjects returns all that have an error.
func (t *lastErrors) subjects() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.last))
}

// all returns the errors of a subject; mu is held.
func (t *lastErrors) all(about string) string {
	var out []string
	for _, by := range slices.Sorted(maps.Keys(t.last[about])) {
		out = append(out, t.last[about][by])
	}
	return strings.Join(slices.Compact(out), "; ")
}

// changes notifies subscribers that something has changed. It is safe for concurrent use.
type changes struct {
	mu          sync.Mutex
	subscribers map[chan struct{}]bool
}

// subscribe returns a channel that receives after each change, at least once after several, until cancel is called.
func (c *changes) subscribe() (changed <-chan struct{}, cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subscribers == nil {
		c.subscribers = map[chan struct{}]bool{}
	}
	s := make(chan struct{}, 1)
	c.subscribers[s] = true
	return s, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, s)
	}
}

func (c *changes) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subscribers {
		lifecycle.Wake(s)
	}
}
