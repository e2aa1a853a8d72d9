package kube

import (
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
)

// own is what answers to own writes have told of an object and the watch has not.
type own[T Object] struct {
	// object is what is read; none is that it is gone, and last what it was.
	object, last T
	uid          types.UID
	// version is the newest one of the object's that is known: what the watch
	// tells of older ones is no news.
	version uint64
	// facts hold of the object from now on; nobody knows since which version.
	facts []fact[T]
}

// fact is what an answer tells without a version: that an object is being deleted,
// or that a Pod has its node.
type fact[T Object] struct {
	// shows says whether a state has come after it.
	shows func(T) bool
	// impose changes a copy of a state from before it.
	impose func(T)
}

// impose returns a state as the facts have it.
func impose[T Object](o T, facts []fact[T]) T {
	if len(facts) == 0 {
		return o
	}
	o = o.DeepCopyObject().(T)
	for _, f := range facts {
		f.impose(o)
	}
	return o
}

// without returns the facts that a state does not show.
func without[T Object](o T, facts []fact[T]) []fact[T] {
	return slices.DeleteFunc(slices.Clone(facts), func(f fact[T]) bool { return f.shows(o) })
}

// startedOver is the version up to which all is told when versions have begun anew.
const startedOver = math.MaxUint64

// caughtUp returns what is left of an own write when the watch has told an object,
// or that there is none, and everything else of the name up to a version.
func (w own[T]) caughtUp(o T, there bool, upTo uint64) (left own[T], lasts bool) {
	var none T
	switch {
	case upTo == startedOver:
		return w, false
	case !there || o.GetUID() != w.uid:
		return w, upTo < w.version
	case w.object == none:
		// It is of a time before it was gone.
		return w, true
	}
	w.facts = without(o, w.facts)
	if v := version(o); v >= w.version {
		w.object, w.version = impose(o, w.facts), v
		return w, len(w.facts) > 0
	}
	return w, true
}

// wrote takes the result of an own write, unless the watch has told something
// newer.
func (s *store[T]) wrote(o T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none T
	key, v := cluster.Key(o), version(o)
	before, wrote := s.own[key]
	if v <= s.told || wrote && v <= before.version {
		return
	}
	w := own[T]{object: o, last: o, uid: o.GetUID(), version: v}
	if wrote && before.uid == w.uid {
		if before.object == none {
			return
		}
		w.facts = without(o, before.facts)
		w.object = impose(o, w.facts)
	}
	s.alter(key, func() { s.own[key] = w })
}

// deleted takes the last state of an object that an own write has removed.
func (s *store[T]) deleted(o T) {
	s.overlay(o, func(w own[T]) own[T] {
		var none T
		w.object, w.facts = none, nil
		return w
	})
}

// learn takes a fact about an object.
func (s *store[T]) learn(o T, f fact[T]) {
	s.overlay(o, func(w own[T]) own[T] {
		if !f.shows(w.object) {
			w.facts = append(slices.Clone(w.facts), f)
			w.object = impose(w.object, w.facts)
		}
		return w
	})
}

// overlay changes what is known by own writes of an object, if it is there.
func (s *store[T]) overlay(o T, change func(own[T]) own[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := cluster.Key(o)
	now, ok := s.newest(key)
	if !ok || now.GetUID() != o.GetUID() {
		return
	}
	w, wrote := s.own[key]
	if !wrote {
		w = own[T]{object: now, last: now, uid: now.GetUID(), version: version(now)}
	}
	if left := change(w); wrote || left.object != w.object {
		s.alter(key, func() { s.own[key] = left })
	}
}
