package kube

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/cluster"
)

// Object is a Kubernetes object of one Go type.
type Object interface {
	comparable
	runtime.Object
	metav1.Object
}

// Cache holds all objects of one kind as the watch last told, with what the
// process has written itself laid over them until the watch has caught up: what it
// made is there, what it deleted is being deleted or gone, and everything is found
// under what it says now. So a decision never works on facts older than its own
// acts. Objects are shared: copy before changing.
type Cache[T Object] struct {
	store *store[T]
	from  cache.ListerWatcher
}

func newCache[T Object](from cache.ListerWatcher, indexers cluster.Indexers[T], trim cache.TransformFunc) *Cache[T] {
	return &Cache[T]{store: newStore(indexers, trim), from: from}
}

// start follows the cluster until ctx ends.
func (c *Cache[T]) start(ctx context.Context) {
	for _, l := range c.store.listeners {
		go l.run(ctx)
	}
	var kind T
	go cache.NewReflectorWithOptions(c.from, kind, feed[T]{c.store},
		cache.ReflectorOptions{Name: "volplane"}).RunWithContext(ctx)
}

// wait returns when the cache holds all objects, or with an error when ctx has
// ended.
func (c *Cache[T]) wait(ctx context.Context) error {
	select {
	case <-c.store.full:
		return nil
	case <-ctx.Done():
		var kind T
		return fmt.Errorf("read all %T: %w", kind, context.Cause(ctx))
	}
}

// Get returns the object with the key "namespace/name", or "name" where there
// are no namespaces.
func (c *Cache[T]) Get(key string) (T, bool) { return c.store.get(key) }

// List returns all objects, ordered by key.
func (c *Cache[T]) List() []T { return sorted(c.store.list()) }

// By returns the objects whose index has the value, ordered by key. Indexes
// are those of package cluster.
func (c *Cache[T]) By(index, value string) []T { return sorted(c.store.by(index, value)) }

// ByUID returns the object with the uid, of claims, and of a node's Pods.
func (c *Cache[T]) ByUID(uid string) (T, bool) {
	var none T
	if found := c.By(indexUID, uid); len(found) > 0 {
		return found[0], true
	}
	return none, false
}

// Wrote lays the result of an own write over the cache. A Writer does so by itself.
func (c *Cache[T]) Wrote(o T) { c.store.wrote(o) }

// Watch calls f for every change that the watch tells, one after the other: before
// is the zero value for an object that appeared, after for one that went away. Own
// writes are told of as all others are, when the watch does. It must be called
// before the cache is started, and f must not block.
func (c *Cache[T]) Watch(f func(before, after T)) {
	c.store.listeners = append(c.store.listeners, newListener(f))
}

// BeforeGone calls f with the last state of each object that goes, before anybody
// can read that it has gone: who must remember it has done so when others look. It
// must be called before the cache is started, and f must not look into this cache.
func (c *Cache[T]) BeforeGone(f func(T)) { c.store.gone = append(c.store.gone, f) }

func sorted[T Object](objects []T) []T {
	slices.SortFunc(objects, cluster.Compare[T])
	return objects
}
