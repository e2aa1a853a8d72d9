package driverhost

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// told remembers the last error of each process of each subject, a file or driver. It is safe for concurrent use.
type told struct {
	mu   sync.Mutex
	last map[string]map[string]string
}

// add remembers an error, and returns all of the subject. It says whether that is a new one.
func (t *told) add(about, by, text string) (all string, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]map[string]string{}
	}
	if t.last[about] == nil {
		t.last[about] = map[string]string{}
	}
	isNew = t.last[about][by] != text
	t.last[about][by] = text
	return t.all(about), isNew
}

// drop forgets the error of a process, or all of a subject if by is "", and returns what is left of the subject. It
// says whether there was one.
func (t *told) drop(about, by string) (left string, was bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.last[about])
	delete(t.last[about], by)
	if by == "" {
		clear(t.last[about])
	}
	was = len(t.last[about]) < before
	if len(t.last[about]) == 0 {
		delete(t.last, about)
	}
	return t.all(about), was
}

// subjects returns all that have an error.
func (t *told) subjects() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.last))
}

// all returns the errors of a subject; mu is held.
func (t *told) all(about string) string {
	var out []string
	for _, by := range slices.Sorted(maps.Keys(t.last[about])) {
		out = append(out, t.last[about][by])
	}
	return strings.Join(slices.Compact(out), "; ")
}
