package kube

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// store holds objects by key, as the watch reports them, with overlays of own writes, and indexes
// of them. It notifies listeners of each change that the watch reports, once, after readers can see
// it; own writes are visible to readers sooner, but listeners are notified of them by the watch.
type store[T Object] struct {
	indexers cluster.Indexers[T]
	trim     cache.TransformFunc
	// beforeDelete holds the handlers that are called with each deleted object before readers can
	// see the deletion.
	beforeDelete []func(T)

	mu sync.RWMutex
	// objects holds the objects as the watch has reported them.
	objects map[string]T
	// seen is the resource version up to which the watch has reported everything. Versions of one
	// kind are numbers that grow with each write, and a watch reports in order.
	seen uint64
	// seenOf is the same for each key where objects are read by name; otherwise it is nil.
	seenOf map[string]uint64
	// named is called with objects before they can be read, and returns a function to call after that; it may be nil.
	named func([]T) (seen func())
	// overlays holds the results of own writes that the watch has not caught up with.
	overlays map[string]overlay[T]
	indexes  map[string]index
	// listeners are notified of each change.
	listeners []*listener[T]

	synced   chan struct{}
	syncOnce sync.Once
}

var _ cache.TransformingStore = (*reflectorStore[*corev1.Pod])(nil)

func newStore[T Object](indexers cluster.Indexers[T], trim cache.TransformFunc) *store[T] {
	s := &store[T]{
		indexers: indexers, trim: trim, objects: map[string]T{}, overlays: map[string]overlay[T]{},
		indexes: make(map[string]index, len(indexers)),
		synced:  make(chan struct{}),
	}
	for name := range indexers {
		s.indexes[name] = index{}
	}
	return s
}

// get returns the newest known state of an object.
func (s *store[T]) get(key string) (T, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.newest(key)
}

func (s *store[T]) newest(key string) (T, bool) {
	var none T
	if w, wrote := s.overlays[key]; wrote {
		return w.object, w.object != none
	}
	o, ok := s.objects[key]
	return o, ok
}

func (s *store[T]) list() []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := s.all(maps.Keys(s.objects), len(s.objects)+len(s.overlays))
	return append(out, s.all(s.createdKeys, 0)...)
}

// createdKeys yields the keys that have an overlay but that the watch has not reported.
func (s *store[T]) createdKeys(yield func(string) bool) {
	for key := range s.overlays {
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

// update stores an object that the watch reports.
func (s *store[T]) update(o T) {
	key := cluster.Key(o)
	s.mu.Lock()
	s.saw(key, version(o))
	s.notify(s.set(key, o, true, version(o))...)
	s.mu.Unlock()
}

// remove stores that the watch reports a deletion; o is the object's last state.
func (s *store[T]) remove(o T) {
	key, upTo := cluster.Key(o), version(o)
	s.mu.Lock()
	s.saw(key, upTo)
	if w, wrote := s.overlays[key]; wrote && w.uid == o.GetUID() {
		upTo = w.version
	}
	s.notify(s.set(key, o, false, upTo)...)
	s.mu.Unlock()
}

// replace stores a list of all objects at version upTo. The list may be older than an own write. If
// upTo is lower than what the watch has reported, the server has restarted its versions, and all
// overlays are dropped.
func (s *store[T]) replace(all []T, upTo uint64) {
	var changes []change[T]
	s.mu.Lock()
	for _, o := range all {
		upTo = max(upTo, version(o))
	}
	restarted := upTo < s.seen
	s.seen, s.seenOf = upTo, nil
	if restarted {
		upTo = versionsRestarted
	}
	if len(s.objects) == 0 {
		s.objects = make(map[string]T, len(all))
	}
	listed := make(map[string]bool, len(all))
	for _, o := range all {
		key := cluster.Key(o)
		listed[key] = true
		changes = append(changes, s.set(key, o, true, upTo)...)
	}
	for key, o := range s.objects {
		if !listed[key] {
			changes = append(changes, s.set(key, o, false, upTo)...)
		}
	}
	for key := range s.overlays {
		if _, told := s.objects[key]; !told {
			var none T
			changes = append(changes, s.set(key, none, false, upTo)...)
		}
	}
	s.notify(changes...)
	s.mu.Unlock()
	s.syncOnce.Do(func() { close(s.synced) })
}

// replaceOne stores a list of the object with a key at version upTo; o is the zero value if the object does not exist.
func (s *store[T]) replaceOne(key string, o T, upTo uint64) {
	var none T
	s.mu.Lock()
	defer s.mu.Unlock()
	exists := o != none
	if exists {
		upTo = max(upTo, version(o))
	} else {
		o = s.objects[key]
	}
	restarted := upTo < s.seenOf[key]
	s.seenOf[key] = upTo
	if restarted {
		upTo = versionsRestarted
	}
	s.notify(s.set(key, o, exists, upTo)...)
}

// forget drops what is known of a key. No listener is notified.
func (s *store[T]) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none T
	before, _ := s.newest(key)
	delete(s.objects, key)
	delete(s.overlays, key)
	delete(s.seenOf, key)
	s.reindex(key, before, none)
}

// saw records that the watch has reported everything up to a version: of a key, where objects are read by name.
func (s *store[T]) saw(key string, upTo uint64) {
	if s.seenOf != nil {
		s.seenOf[key] = max(s.seenOf[key], upTo)
		return
	}
	s.seen = max(s.seen, upTo)
}

// seenUpTo returns the version up to which the watch has reported everything about a key.
func (s *store[T]) seenUpTo(key string) uint64 {
	if s.seenOf != nil {
		return s.seenOf[key]
	}
	return s.seen
}

// name makes the store read the objects that others name, and returns what to call when those become visible
// themselves.
func (s *store[T]) name(objects ...T) (seen func()) {
	if s.named == nil {
		return func() {}
	}
	return s.named(objects)
}

// set stores what the watch reports for a key up to a version: object o, or, if exists is false, that there is none;
// then o is the last known state, if any. It returns the changes that listeners have to receive.
func (s *store[T]) set(key string, o T, exists bool, upTo uint64) (changes []change[T]) {
	var none T
	before, known := s.objects[key]
	s.change(key, func() {
		if exists {
			s.objects[key] = o
		} else {
			delete(s.objects, key)
		}
		w, wrote := s.overlays[key]
		if !wrote {
			return
		}
		rest, remains := w.merge(o, exists, upTo)
		if remains {
			s.overlays[key] = rest
			return
		}
		delete(s.overlays, key)
		if is := exists && o.GetUID() == w.uid; !is && (!known || before.GetUID() != w.uid) {
			// Readers have seen an object that was created and deleted without a report by the watch.
			changes = append(changes, change[T]{w.last, none})
		}
	})
	switch {
	case exists:
		return append(changes, changesBetween(before, o, known)...)
	case known:
		return append(changes, change[T]{o, none})
	}
	return changes
}

// changesBetween returns the changes for the listeners when the watch reports an object. If it was deleted and created
// under the same name while the watch was interrupted, these are two changes. Objects of test fakes have no versions:
// each report is a change.
func changesBetween[T Object](before, after T, known bool) []change[T] {
	var none T
	switch {
	case known && before.GetUID() != after.GetUID():
		return []change[T]{{before, none}, {none, after}}
	case !known || after.GetResourceVersion() == "" || before.GetResourceVersion() != after.GetResourceVersion():
		return []change[T]{{before, after}}
	}
	return nil
}

// change calls a function that changes the known state of a key, and updates the index. It calls the handlers of
// beforeDelete if the object is gone afterwards.
func (s *store[T]) change(key string, change func()) {
	before, existed := s.newest(key)
	change()
	after, exists := s.newest(key)
	if existed && (!exists || before.GetUID() != after.GetUID()) {
		for _, f := range s.beforeDelete {
			f(before)
		}
	}
	s.reindex(key, before, after)
}

func version(o metav1.Object) uint64 {
	// The fakes of tests have no versions.
	v, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return v
}

// reindex updates the indexes; before or after may be the zero value.
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

// listen calls a listener for the existing objects, and then for each change until ctx ends.
func (s *store[T]) listen(ctx context.Context, l *listener[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make([]change[T], 0, len(s.objects))
	for _, o := range s.objects {
		there = append(there, change[T]{after: o})
	}
	l.notify(there)
	s.listeners = append(s.listeners, l)
	go func() {
		l.run(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = slices.DeleteFunc(s.listeners, func(o *listener[T]) bool { return o == l })
	}()
}

// notify passes changes on to the listeners, which call their handlers without the lock.
func (s *store[T]) notify(changes ...change[T]) {
	for _, l := range s.listeners {
		l.notify(changes)
	}
}

// reflectorStore is a store as client-go's reflector needs it.
type reflectorStore[T Object] struct{ *store[T] }

// Add stores a new object.
func (f reflectorStore[T]) Add(o any) error { return f.Update(o) }

// Update stores a new or changed object.
func (f reflectorStore[T]) Update(o any) error {
	t, err := f.trim(o)
	if err == nil {
		defer f.name(t.(T))()
		f.update(t.(T))
	}
	return err
}

// Delete stores a deletion; o is the object's last state.
func (f reflectorStore[T]) Delete(o any) error {
	t, err := f.trim(o)
	if err == nil {
		f.remove(t.(T))
	}
	return err
}

// Replace stores all objects of a list at a resource version.
func (f reflectorStore[T]) Replace(all []any, at string) error {
	out := make([]T, 0, len(all))
	for _, o := range all {
		t, err := f.trim(o)
		if err != nil {
			return err
		}
		out = append(out, t.(T))
	}
	upTo, _ := strconv.ParseUint(at, 10, 64)
	defer f.name(out...)()
	f.replace(out, upTo)
	return nil
}

// Resync does nothing.
func (f reflectorStore[T]) Resync() error { return nil }

// Transformer returns the function that trims objects. The reflector calls it for each object of a
// streamed list as it arrives, so that the untrimmed objects are never all held at the same time.
func (f reflectorStore[T]) Transformer() cache.TransformFunc { return f.trim }
