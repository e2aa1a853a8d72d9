package kube

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// store is what a watch fills: the objects, by key, and their indexes, each
// object under a few words that are mostly its own. It tells listeners of each
// change after it can be read.
type store[T Object] struct {
	indexers  cluster.Indexers[T]
	trim      cache.TransformFunc
	listeners []*listener[T]

	mu      sync.RWMutex
	objects map[string]T
	indexes map[string]index
	// own are own writes that the watch has not told yet.
	own map[string]own[T]

	full   chan struct{}
	filled sync.Once
}

// own is an object as an own write left it. It counts until the watch has caught
// up; after a time whatever the watch says counts more, and while it says nothing
// an own write is still the best that is known.
type own[T Object] struct {
	object T
	until  time.Time
}

var _ cache.TransformingStore = (*feed[*corev1.Pod])(nil)

func newStore[T Object](indexers cluster.Indexers[T], trim cache.TransformFunc) *store[T] {
	s := &store[T]{indexers: indexers, trim: trim, objects: map[string]T{}, own: map[string]own[T]{}, full: make(chan struct{})}
	s.indexes = s.newIndexes()
	return s
}

func (s *store[T]) newIndexes() map[string]index {
	out := make(map[string]index, len(s.indexers))
	for name := range s.indexers {
		out[name] = index{}
	}
	return out
}

// get returns the newest state of an object that the watch has told of.
func (s *store[T]) get(key string) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.newest(key)
}

func (s *store[T]) newest(key string) (T, bool) {
	o, ok := s.objects[key]
	if w, wrote := s.own[key]; ok && wrote {
		return w.object, true
	}
	return o, ok
}

func (s *store[T]) list() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all(maps.Keys(s.objects), len(s.objects))
}

func (s *store[T]) by(index, value string) []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.indexes[index][value]
	if !ok {
		return nil
	}
	return s.all(at.keys, 1+len(at.more))
}

func (s *store[T]) all(keys func(func(string) bool), n int) []T {
	out := make([]T, 0, n)
	for k := range keys {
		if o, ok := s.newest(k); ok {
			out = append(out, o)
		}
	}
	return out
}

// wrote takes the result of an own write. An object that the watch has not told
// of may be gone again.
func (s *store[T]) wrote(o T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := cluster.Key(o)
	now, ok := s.newest(key)
	if ok && newer(o, now) {
		s.own[key] = own[T]{o, time.Now().Add(ownWriteTTL)}
	}
}

// put takes an object as the watch tells it.
func (s *store[T]) put(o T) {
	key := cluster.Key(o)
	s.mu.Lock()
	before, known := s.objects[key]
	s.objects[key] = o
	s.reindex(key, before, o)
	s.settle(key, o)
	s.mu.Unlock()
	s.tell(changes(before, o, known)...)
}

// changes returns what is told of an object that was there before, or not. What
// was made anew under its name, while the watch was away, has gone and come. The
// fakes of tests have no versions.
func changes[T Object](before, after T, known bool) []change[T] {
	var none T
	switch {
	case known && before.GetUID() != after.GetUID():
		return []change[T]{{before, none}, {none, after}}
	case !known || after.GetResourceVersion() == "" || before.GetResourceVersion() != after.GetResourceVersion():
		return []change[T]{{before, after}}
	}
	return nil
}

// remove takes an object away; o is its last state.
func (s *store[T]) remove(o T) {
	var none T
	key := cluster.Key(o)
	s.mu.Lock()
	before, known := s.objects[key]
	delete(s.objects, key)
	delete(s.own, key)
	s.reindex(key, before, none)
	s.mu.Unlock()
	if known {
		s.tell(change[T]{o, none})
	}
}

// replace makes these all objects that there are.
func (s *store[T]) replace(all []T) {
	var none T
	var news []change[T]
	s.mu.Lock()
	was := s.objects
	s.objects, s.indexes = make(map[string]T, len(all)), s.newIndexes()
	for _, o := range all {
		key := cluster.Key(o)
		before, known := was[key]
		news = append(news, changes(before, o, known)...)
		s.objects[key] = o
		s.reindex(key, none, o)
		s.settle(key, o)
	}
	for key, o := range was {
		if _, there := s.objects[key]; !there {
			delete(s.own, key)
			news = append(news, change[T]{o, none})
		}
	}
	s.mu.Unlock()
	s.tell(news...)
	s.filled.Do(func() { close(s.full) })
}

// settle ends an own write that the watch has caught up with, or should have.
func (s *store[T]) settle(key string, o T) {
	if w, wrote := s.own[key]; wrote && (!newer(w.object, o) || !time.Now().Before(w.until)) {
		delete(s.own, key)
	}
}

// newer says whether a is a later version than b of an object, or of its name.
func newer(a, b metav1.Object) bool { return version(a) > version(b) }

func version(o metav1.Object) uint64 {
	// Versions are numbers; the fakes of tests have none.
	v, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return v
}

// reindex puts an object where it is to be found now; before or after may be
// none.
func (s *store[T]) reindex(key string, before, after T) {
	var none T
	for name, values := range s.indexers {
		var old, now []string
		if before != none {
			old = values(before)
		}
		if after != none {
			now = values(after)
		}
		if slices.Equal(old, now) {
			continue
		}
		for _, v := range old {
			s.indexes[name].remove(v, key)
		}
		for _, v := range now {
			s.indexes[name].add(v, key)
		}
	}
}

func (s *store[T]) tell(changes ...change[T]) {
	for _, l := range s.listeners {
		l.tell(changes)
	}
}

// feed is how the watch sees a store.
type feed[T Object] struct{ *store[T] }

// Add takes an object that is new.
func (f feed[T]) Add(o any) error { return f.Update(o) }

// Update takes an object that is new or has changed.
func (f feed[T]) Update(o any) error {
	t, err := f.trim(o)
	if err == nil {
		f.put(t.(T))
	}
	return err
}

// Delete takes the last state of an object that is gone.
func (f feed[T]) Delete(o any) error {
	t, err := f.trim(o)
	if err == nil {
		f.remove(t.(T))
	}
	return err
}

// Replace takes all objects that there are.
func (f feed[T]) Replace(all []any, _ string) error {
	out := make([]T, 0, len(all))
	for _, o := range all {
		t, err := f.trim(o)
		if err != nil {
			return err
		}
		out = append(out, t.(T))
	}
	f.replace(out)
	return nil
}

// Resync does nothing.
func (f feed[T]) Resync() error { return nil }

// Transformer has a stream of all objects hold none of them as it comes.
func (f feed[T]) Transformer() cache.TransformFunc { return f.trim }
