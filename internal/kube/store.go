package kube

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// store is what a watch fills, with the answers to own writes laid over it: the
// objects, by key, and their indexes, each object under a few words that are mostly
// its own. It tells listeners of what the watch tells, once and after it can be
// read; own writes are only read sooner.
type store[T Object] struct {
	indexers  cluster.Indexers[T]
	trim      cache.TransformFunc
	listeners []*listener[T]
	// gone are called for what cannot be read any more, before anybody can find
	// that out.
	gone []func(T)

	mu sync.RWMutex
	// objects are as the watch has told them.
	objects map[string]T
	// told is the version up to which the watch has told everything. Versions of
	// one kind are numbers that grow with each write, and a watch tells in order.
	told uint64
	// own are answers to own writes that the watch has not caught up with.
	own     map[string]own[T]
	indexes map[string]index

	full   chan struct{}
	filled sync.Once
}

var _ cache.TransformingStore = (*feed[*corev1.Pod])(nil)

func newStore[T Object](indexers cluster.Indexers[T], trim cache.TransformFunc) *store[T] {
	s := &store[T]{
		indexers: indexers, trim: trim, objects: map[string]T{}, own: map[string]own[T]{},
		indexes: make(map[string]index, len(indexers)),
		full:    make(chan struct{}),
	}
	for name := range indexers {
		s.indexes[name] = index{}
	}
	return s
}

// get returns the newest state of an object that is known.
func (s *store[T]) get(key string) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.newest(key)
}

func (s *store[T]) newest(key string) (T, bool) {
	var none T
	if w, wrote := s.own[key]; wrote {
		return w.object, w.object != none
	}
	o, ok := s.objects[key]
	return o, ok
}

func (s *store[T]) list() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := s.all(maps.Keys(s.objects), len(s.objects)+len(s.own))
	return append(out, s.all(s.made, 0)...)
}

// made are the keys of own objects that the watch has not told of.
func (s *store[T]) made(yield func(string) bool) {
	for key := range s.own {
		if _, told := s.objects[key]; !told && !yield(key) {
			return
		}
	}
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

// put takes an object as the watch tells it.
func (s *store[T]) put(o T) {
	s.mu.Lock()
	s.told = max(s.told, version(o))
	news := s.set(cluster.Key(o), o, true, version(o))
	s.mu.Unlock()
	s.tell(news...)
}

// remove takes an object away; o is its last state.
func (s *store[T]) remove(o T) {
	key, upTo := cluster.Key(o), version(o)
	s.mu.Lock()
	s.told = max(s.told, upTo)
	if w, wrote := s.own[key]; wrote && w.uid == o.GetUID() {
		upTo = w.version
	}
	news := s.set(key, o, false, upTo)
	s.mu.Unlock()
	s.tell(news...)
}

// replace makes these all objects that there are, or were at a version, which a
// list may be of that was made before an own write. A version from before what the
// watch has told is of a history that has begun anew: own writes are none of its.
func (s *store[T]) replace(all []T, upTo uint64) {
	var news []change[T]
	s.mu.Lock()
	for _, o := range all {
		upTo = max(upTo, version(o))
	}
	anew := upTo < s.told
	s.told = upTo
	if anew {
		upTo = startedOver
	}
	if len(s.objects) == 0 {
		s.objects = make(map[string]T, len(all))
	}
	there := make(map[string]bool, len(all))
	for _, o := range all {
		key := cluster.Key(o)
		there[key] = true
		news = append(news, s.set(key, o, true, upTo)...)
	}
	for key, o := range s.objects {
		if !there[key] {
			news = append(news, s.set(key, o, false, upTo)...)
		}
	}
	for key := range s.own {
		if _, told := s.objects[key]; !told {
			var none T
			news = append(news, s.set(key, none, false, upTo)...)
		}
	}
	s.mu.Unlock()
	s.tell(news...)
	s.filled.Do(func() { close(s.full) })
}

// set takes what the watch tells of a key up to a version: an object, or that there
// is none, of which o is the last state if one was told of. It returns what is to
// be told.
func (s *store[T]) set(key string, o T, there bool, upTo uint64) (news []change[T]) {
	var none T
	before, known := s.objects[key]
	s.alter(key, func() {
		if there {
			s.objects[key] = o
		} else {
			delete(s.objects, key)
		}
		w, wrote := s.own[key]
		if !wrote {
			return
		}
		left, lasts := w.caughtUp(o, there, upTo)
		if lasts {
			s.own[key] = left
			return
		}
		delete(s.own, key)
		if is := there && o.GetUID() == w.uid; !is && (!known || before.GetUID() != w.uid) {
			// It came and went unseen, and has been read here.
			news = append(news, change[T]{w.last, none})
		}
	})
	switch {
	case there:
		return append(news, changes(before, o, known)...)
	case known:
		return append(news, change[T]{o, none})
	}
	return news
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

// alter changes what is known of a key, and puts the object where it is to be found
// then.
func (s *store[T]) alter(key string, change func()) {
	before, was := s.newest(key)
	change()
	after, is := s.newest(key)
	if was && (!is || before.GetUID() != after.GetUID()) {
		for _, f := range s.gone {
			f(before)
		}
	}
	s.reindex(key, before, after)
}

func version(o metav1.Object) uint64 {
	// Versions are numbers; the fakes of tests have none.
	v, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return v
}

// reindex puts an object where it is to be found now; before or after may be
// none.
func (s *store[T]) reindex(key string, before, after T) {
	var none T
	if before == after {
		return
	}
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

// Replace takes all objects that there are, or were at a version.
func (f feed[T]) Replace(all []any, at string) error {
	out := make([]T, 0, len(all))
	for _, o := range all {
		t, err := f.trim(o)
		if err != nil {
			return err
		}
		out = append(out, t.(T))
	}
	upTo, _ := strconv.ParseUint(at, 10, 64)
	f.replace(out, upTo)
	return nil
}

// Resync does nothing.
func (f feed[T]) Resync() error { return nil }

// Transformer has a stream of all objects hold none of them as it comes.
func (f feed[T]) Transformer() cache.TransformFunc { return f.trim }
