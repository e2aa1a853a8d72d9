package kube

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
)

// overlay is the state of one object that is known from answers to own writes and that the watch
// has not reported yet.
type overlay[T Object] struct {
	// object is the state that readers get; the zero value if the object was deleted.
	object T
	// last is the last known state of the object, even after its deletion.
	last T
	uid  types.UID
	// version is the newest known resource version of the object; older states that the watch
	// reports are ignored.
	version uint64
	// facts holds changes whose resource version is not known; they apply to every later state.
	facts []fact[T]
}

// fact is a change that the API server has confirmed without a resource version: that an object is
// being deleted, or that a Pod has been bound to a node.
type fact[T Object] struct {
	// holds says whether a state includes the change.
	holds func(T) bool
	// apply makes the change to a state that does not include it.
	apply func(T)
}

// withFacts returns a copy of a state to which the facts were applied.
func withFacts[T Object](o T, facts []fact[T]) T {
	if len(facts) == 0 {
		return o
	}
	o = o.DeepCopyObject().(T)
	for _, f := range facts {
		f.apply(o)
	}
	return o
}

// factsNotIn returns the facts that a state does not include.
func factsNotIn[T Object](o T, facts []fact[T]) []fact[T] {
	return slices.DeleteFunc(slices.Clone(facts), func(f fact[T]) bool { return f.holds(o) })
}

// versionsRestarted is used as the resource version of a list after the server's versions restarted from a lower
// number.
const versionsRestarted = math.MaxUint64

// merge takes what the watch reports for the overlay's key: object o, or, if exists is false, that there is none. The
// watch has reported all changes of that key up to version upTo. It returns the overlay that is still needed; remains
// is false if none is.
func (w overlay[T]) merge(o T, exists bool, upTo uint64) (rest overlay[T], remains bool) {
	var none T
	switch {
	case upTo == versionsRestarted:
		return w, false
	case !exists || o.GetUID() != w.uid:
		return w, upTo < w.version
	case w.object == none:
		// The reported state is older than the object's deletion.
		return w, true
	}
	w.facts = factsNotIn(o, w.facts)
	if v := version(o); v >= w.version {
		w.object, w.version = withFacts(o, w.facts), v
		return w, len(w.facts) > 0
	}
	return w, true
}

// recordWrite stores the result of an own write, unless the watch has reported something newer.
func (s *store[T]) recordWrite(o T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none T
	key, v := cluster.Key(o), version(o)
	before, wrote := s.overlays[key]
	if v <= s.seenUpTo(key) || wrote && v <= before.version {
		return
	}
	w := overlay[T]{object: o, last: o, uid: o.GetUID(), version: v}
	if wrote && before.uid == w.uid {
		if before.object == none {
			return
		}
		w.facts = factsNotIn(o, before.facts)
		w.object = withFacts(o, w.facts)
	}
	s.change(key, func() { s.overlays[key] = w })
}

// recordDeletion stores that an own write has deleted an object; o is its last state.
func (s *store[T]) recordDeletion(o T) {
	s.changeOverlay(o, func(w overlay[T]) overlay[T] {
		var none T
		w.object, w.facts = none, nil
		return w
	})
}

// recordFact stores a fact about an object.
func (s *store[T]) recordFact(o T, f fact[T]) {
	s.changeOverlay(o, func(w overlay[T]) overlay[T] {
		if !f.holds(w.object) {
			w.facts = append(slices.Clone(w.facts), f)
			w.object = withFacts(w.object, w.facts)
		}
		return w
	})
}

// changeOverlay changes the overlay of an object, if the object exists.
func (s *store[T]) changeOverlay(o T, change func(overlay[T]) overlay[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := cluster.Key(o)
	now, ok := s.newest(key)
	if !ok || now.GetUID() != o.GetUID() {
		return
	}
	w, wrote := s.overlays[key]
	if !wrote {
		w = overlay[T]{object: now, last: now, uid: now.GetUID(), version: version(now)}
	}
	if left := change(w); wrote || left.object != w.object {
		s.change(key, func() { s.overlays[key] = left })
	}
}
