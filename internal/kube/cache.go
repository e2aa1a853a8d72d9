package kube

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// firstLook and lastLook are the first and the longest pause between two looks for a kind that a server does not have.
const firstLook, lastLook = 100 * time.Millisecond, time.Minute

// Object is a Kubernetes object of one Go type.
type Object interface {
	comparable
	runtime.Object
	metav1.Object
}

// Cache holds all objects of one kind as the watch last reported them, with the results of the process's own writes
// applied to them until the watch has caught up: an object that was created is found, one that was deleted is gone or
// being deleted, and the indexes agree. So a decision never works on a state older than its own writes. Objects are
// shared: copy before changing.
type Cache[T Object] struct {
	store  *store[T]
	source cache.ListerWatcher
	// optional is the resource of a kind that a server may not have, or "".
	optional string
	// forgone says that the objects are never read.
	forgone bool
	// borrowed says that other caches fill the store.
	borrowed bool
	// byName fills the store with single objects; nil if all are read.
	byName *byName[T]
	// listeners are added to the store at the start.
	listeners []*listener[T]
}

func newCache[T Object](from cache.ListerWatcher, indexers cluster.Indexers[T], trim cache.TransformFunc) *Cache[T] {
	return &Cache[T]{store: newStore(indexers, trim), source: from}
}

// start begins to list and watch, until ctx ends.
func (c *Cache[T]) start(ctx context.Context) {
	for _, l := range c.listeners {
		c.store.listen(ctx, l)
	}
	switch {
	case c.borrowed:
		return
	case c.byName != nil:
		c.byName.start(ctx)
		return
	case c.forgone:
		c.store.replace(nil, 0)
		return
	}
	var kind T
	r := cache.NewReflectorWithOptions(c.source, kind, reflectorStore[T]{c.store},
		cache.ReflectorOptions{Name: "volplane"})
	go func() {
		if c.optional != "" {
			c.waitForKind(ctx)
		}
		r.RunWithContext(ctx)
	}()
}

// lend returns a cache of the same objects that has listeners and an end of its own.
func (c *Cache[T]) lend() *Cache[T] {
	return &Cache[T]{store: c.store, forgone: c.forgone, optional: c.optional, borrowed: true}
}

// waitForKind returns when the server has the kind, or when ctx ends. A reflector would log each try as an error.
func (c *Cache[T]) waitForKind(ctx context.Context) {
	pauses := wait.Backoff{Duration: firstLook, Factor: 2, Steps: math.MaxInt, Cap: lastLook}
	_ = pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (found bool, err error) {
		_, err = cache.ToListerWatcherWithContext(c.source).ListWithContext(ctx, metav1.ListOptions{Limit: 1})
		return !apierrors.IsNotFound(err), nil
	})
}

// Forgone says that the process works without the objects of this kind, so finding none means nothing.
func (c *Cache[T]) Forgone() bool { return c.forgone }

// optionalResource returns the resource of a kind that a server may not have, or "".
func (c *Cache[T]) optionalResource() string { return c.optional }

// wait returns when the cache has the objects of the first list, or with an error when ctx ends.
func (c *Cache[T]) wait(ctx context.Context) error {
	select {
	case <-c.store.synced:
		return nil
	case <-ctx.Done():
		var kind T
		return fmt.Errorf("read all %T: %w", kind, context.Cause(ctx))
	}
}

// Get returns the object with the key "namespace/name", or "name" for kinds without namespaces.
func (c *Cache[T]) Get(key string) (T, bool) { return c.store.get(key) }

// List returns all objects, ordered by key.
func (c *Cache[T]) List() []T { return sorted(c.store.list()) }

// By returns the objects whose index has the value, ordered by key. Indexes
// are those of package cluster.
func (c *Cache[T]) By(index, value string) []T { return sorted(c.store.by(index, value)) }

// ByUID returns the object with the UID. Only claims, and the Pods of a node's caches, have this
// index.
func (c *Cache[T]) ByUID(uid string) (T, bool) {
	var none T
	if found := c.By(indexUID, uid); len(found) > 0 {
		return found[0], true
	}
	return none, false
}

// Wrote applies the result of a write to the cache. It is for writes by another client: a Writer does so itself.
func (c *Cache[T]) Wrote(o T) { c.store.recordWrite(o) }

// Watch calls f for every change that the watch reports, one after the other: before is the zero value for a new
// object, after for a deleted one. The process's own writes are reported like all others, when the watch reports them.
// Watch must be called before the cache is started, and f must not block.
func (c *Cache[T]) Watch(f func(before, after T)) { c.listeners = append(c.listeners, newListener(f)) }

// BeforeDelete calls f with the last state of each object that is deleted, before any reader of the
// cache can see that it is gone: what f stores is visible to those readers. It must be called
// before the cache is started, not for one that is borrowed, and f must not read this cache.
func (c *Cache[T]) BeforeDelete(f func(T)) { c.store.beforeDelete = append(c.store.beforeDelete, f) }

func sorted[T Object](objects []T) []T {
	slices.SortFunc(objects, cluster.Compare[T])
	return objects
}

// change is one change of an object. before is the zero value if the object is new, after if it was
// deleted.
type change[T Object] struct{ before, after T }

// listener calls a handler for each change, one after the other, in its own goroutine: a handler
// that waits for a lock does not delay the watch.
type listener[T Object] struct {
	handler func(before, after T)

	mu    sync.Mutex
	queue []change[T]
	wake  chan struct{}
}

func newListener[T Object](f func(before, after T)) *listener[T] {
	return &listener[T]{handler: f, wake: make(chan struct{}, 1)}
}

func (l *listener[T]) notify(changes []change[T]) {
	l.mu.Lock()
	l.queue = append(l.queue, changes...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener[T]) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		changes := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, c := range changes {
			if ctx.Err() != nil {
				return
			}
			l.handler(c.before, c.after)
		}
	}
}
