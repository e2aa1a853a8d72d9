package kube

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// mostNamed is how many objects of a kind are read by name. More are read as a whole: each name costs a watch.
const mostNamed = 256

// ByName makes claims and volumes be read by name, as a kubelet reads them: the claims that the Pods name, the volumes
// that these claims name, and the given volumes. An object is read before the object that names it becomes visible, so
// one that is not found does not exist. It must be called before Start.
func (c *Caches) ByName(volumes []string) {
	c.newest = true
	pods := c.Pods().store
	claims := newByName(c.Claims(), &c.naming, func(key string) cache.ListerWatcher {
		namespace, name, _ := strings.Cut(key, "/")
		return sourceOf(c, c.client.CoreV1().PersistentVolumeClaims(namespace), selectName(name))
	})
	all := newByName(c.Volumes(), &c.naming, func(name string) cache.ListerWatcher {
		return sourceOf(c, c.client.CoreV1().PersistentVolumes(), selectName(name))
	}, volumes...)
	pods.named = func(o []*corev1.Pod) (seen func()) {
		c.naming.RLock()
		claims.follow(valuesOf(pods, cluster.PodsByClaim, o))
		return c.naming.RUnlock
	}
	claims.named = func(o []*corev1.PersistentVolumeClaim) (seen func()) {
		all.follow(valuesOf(claims.store, cluster.ClaimsByVolume, o))
		return func() {}
	}
}

func selectName(name string) string {
	return fields.OneTermEqualSelector("metadata.name", name).String()
}

// valuesOf returns what objects have in an index.
func valuesOf[T Object](s *store[T], index string, objects []T) (out []string) {
	for _, o := range objects {
		out = append(out, s.indexers[index](o)...)
	}
	return out
}

// Release forgets objects that were read by name and that neither Pods and claims nor the given volumes name any more.
func (c *Caches) Release(volumes []string) {
	// Objects being read because of an object that is not visible yet must stay.
	if c.claims.byName == nil || !c.naming.TryLock() {
		return
	}
	defer c.naming.Unlock()
	c.claims.byName.release(func(key string) bool { return len(c.pods.By(cluster.PodsByClaim, key)) > 0 })
	c.volumes.byName.release(func(name string) bool {
		return slices.Contains(volumes, name) || len(c.claims.By(cluster.ClaimsByVolume, name)) > 0
	})
}

// byName fills a store with single objects.
type byName[T Object] struct {
	*store[T]
	// naming is locked while objects are forgotten, and while objects that name others are about to become visible.
	naming *sync.RWMutex
	one    func(key string) cache.ListerWatcher
	all    cache.ListerWatcher
	// first are the names that are read at the start.
	first []string
	begun chan struct{}
	// run fills a store with a reflector until the returned function is called, which waits for its end. It and ended are
	// set when begun is closed.
	run   func(cache.ListerWatcher, cache.ReflectorStore) (stop func())
	ended <-chan struct{}

	mu sync.Mutex
	// followers has those that are read by name; it is nil when all are read.
	followers map[string]*follower[T]
	whole     *follower[T]
}

func newByName[T Object](
	c *Cache[T], naming *sync.RWMutex, one func(key string) cache.ListerWatcher, first ...string,
) *byName[T] {
	c.byName = &byName[T]{
		store: c.store, naming: naming, one: one, all: c.source, first: first, begun: make(chan struct{}),
		followers: map[string]*follower[T]{},
	}
	c.store.seenOf = map[string]uint64{}
	return c.byName
}

// start begins to read, until ctx ends.
func (b *byName[T]) start(ctx context.Context) {
	var kind T
	b.ended = ctx.Done()
	b.run = func(from cache.ListerWatcher, to cache.ReflectorStore) func() {
		own, cancel := context.WithCancel(ctx)
		r := cache.NewReflectorWithOptions(from, kind, to, cache.ReflectorOptions{Name: "volplane"})
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.RunWithContext(own)
		}()
		return func() {
			cancel()
			<-done
		}
	}
	close(b.begun)
	go func() {
		b.follow(b.first)
		b.syncOnce.Do(func() { close(b.synced) })
	}()
}

// follow returns when the objects have been read, and follows them from then on.
func (b *byName[T]) follow(keys []string) {
	<-b.begun
	for _, f := range b.followersOf(keys) {
		select {
		case <-f.synced:
		case <-b.ended:
			return
		}
	}
}

func (b *byName[T]) followersOf(keys []string) (out []*follower[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		if !possible(key) {
			continue
		}
		if b.whole == nil && b.followers[key] == nil {
			if len(b.followers) == mostNamed {
				b.followAll()
				break
			}
			b.followers[key] = b.begin(b.one(key), key)
		}
		out = append(out, b.followers[key])
	}
	if b.whole != nil {
		return []*follower[T]{b.whole}
	}
	return out
}

// possible says whether an object can have a key. Pods and claims may name impossible objects, and a request for a very
// long name would fail for as long as they exist.
func possible(key string) bool {
	return !slices.ContainsFunc(strings.SplitN(key, "/", 2), func(name string) bool {
		return len(validation.NameIsDNSSubdomain(name, false)) > 0
	})
}

// followAll reads all objects instead of single ones. The first list is newer than everything that was read before.
func (b *byName[T]) followAll() {
	for _, f := range b.followers {
		f.stop()
	}
	b.followers, b.whole = nil, b.begin(b.all, "")
}

func (b *byName[T]) begin(from cache.ListerWatcher, key string) *follower[T] {
	f := &follower[T]{
		reflectorStore: reflectorStore[T]{b.store}, naming: b.naming, key: key, synced: make(chan struct{}),
	}
	f.stop = b.run(from, f)
	return f
}

// release forgets the objects that are not needed. The caller has locked naming.
func (b *byName[T]) release(needed func(key string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, f := range b.followers {
		if !needed(key) {
			f.released = true
			go f.stop()
			delete(b.followers, key)
			b.forget(key)
		}
	}
}

// follower fills a store with the object of one key, or with all objects if the key is empty.
type follower[T Object] struct {
	reflectorStore[T]
	naming *sync.RWMutex
	key    string
	stop   func()
	synced chan struct{}
	once   sync.Once
	// released says that the object is forgotten.
	released bool
}

// Add stores a new object.
func (f *follower[T]) Add(o any) error { return f.Update(o) }

// Update stores a new or changed object.
func (f *follower[T]) Update(o any) error {
	return f.unlessReleased(func() error {
		if !f.isOf(o) {
			return nil
		}
		return f.reflectorStore.Update(o)
	})
}

// Delete stores a deletion; o is the object's last state.
func (f *follower[T]) Delete(o any) error {
	return f.unlessReleased(func() error {
		if !f.isOf(o) {
			return nil
		}
		return f.reflectorStore.Delete(o)
	})
}

// Replace stores what a list has at a resource version.
func (f *follower[T]) Replace(all []any, at string) error {
	return f.unlessReleased(func() (err error) {
		if f.key == "" {
			err = f.reflectorStore.Replace(all, at)
		} else {
			err = f.replaceOwn(all, at)
		}
		if err == nil {
			f.once.Do(func() { close(f.synced) })
		}
		return err
	})
}

func (f *follower[T]) replaceOwn(all []any, at string) error {
	upTo, _ := strconv.ParseUint(at, 10, 64)
	var found T
	for _, o := range all {
		if !f.isOf(o) {
			continue
		}
		t, err := f.trim(o)
		if err != nil {
			return err
		}
		found = t.(T)
		defer f.name(found)()
	}
	f.replaceOne(f.key, found, upTo)
	return nil
}

// isOf says whether an object is the follower's. The fakes of tests do not select by name.
func (f *follower[T]) isOf(o any) bool {
	t, ok := o.(T)
	return ok && (f.key == "" || cluster.Key(t) == f.key)
}

func (f *follower[T]) unlessReleased(do func() error) error {
	f.naming.RLock()
	defer f.naming.RUnlock()
	if f.released {
		return nil
	}
	return do()
}
