package kube

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ownWriteTTL bounds how long an own write may hide what the informer says.
// The watch event of the write arrives within milliseconds; the bound only
// matters when the watch is broken.
const ownWriteTTL = time.Minute

// Object is a Kubernetes object of one Go type.
type Object interface {
	comparable
	runtime.Object
	metav1.Object
}

// Cache holds all objects of one kind as the watch last told, with the
// process's own newer writes laid over them, so that a decision never works on
// facts older than its own acts. Objects are shared: copy before changing.
type Cache[T Object] struct {
	informer cache.SharedIndexInformer
	own      cache.MutationCache
}

func newCache[T Object](informer cache.SharedIndexInformer, indexers cache.Indexers) *Cache[T] {
	// AddIndexers fails only on a name that exists: newCache is called once
	// for each informer.
	if err := informer.AddIndexers(indexers); err != nil {
		panic(err)
	}
	store := informer.GetIndexer()
	return &Cache[T]{informer: informer, own: cache.NewIntegerResourceVersionMutationCache(klog.Background(), store, store, ownWriteTTL, false)}
}

// Get returns the object with the key "namespace/name", or "name" where there
// are no namespaces.
func (c *Cache[T]) Get(key string) (T, bool) {
	var none T
	o, ok, err := c.own.GetByKey(key)
	if err != nil || !ok {
		return none, false
	}
	return o.(T), true
}

// List returns all objects, ordered by key.
func (c *Cache[T]) List() []T {
	keys := c.informer.GetIndexer().ListKeys()
	out := make([]T, 0, len(keys))
	for _, k := range keys {
		if o, ok := c.Get(k); ok {
			out = append(out, o)
		}
	}
	sortObjects(out)
	return out
}

// By returns the objects whose index has the value, ordered by key. Indexes
// are those of index.go.
func (c *Cache[T]) By(index, value string) []T {
	objects, err := c.own.ByIndex(index, value)
	if err != nil {
		return nil
	}
	out := make([]T, 0, len(objects))
	for _, o := range objects {
		out = append(out, o.(T))
	}
	sortObjects(out)
	return out
}

// ByUID returns the object with the uid, of claims, and of a node's Pods.
func (c *Cache[T]) ByUID(uid string) (T, bool) {
	var none T
	if found := c.By(indexUID, uid); len(found) > 0 {
		return found[0], true
	}
	return none, false
}

// Wrote lays the result of an own write over the cache until the watch has
// caught up with it.
func (c *Cache[T]) Wrote(o T) { c.own.Mutation(o) }

// Watch calls f for every change, one after the other: before is the zero
// value for an object that appeared, after for one that went away. It must be
// called before the cache is started, and f must not block.
func (c *Cache[T]) Watch(f func(before, after T)) {
	var none T
	_, _ = c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(none, o.(T)) },
		UpdateFunc: func(before, after any) { f(before.(T), after.(T)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if t, ok := o.(T); ok {
				f(t, none)
			}
		},
	})
}

func sortObjects[T Object](objects []T) {
	slices.SortFunc(objects, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// Key returns the key under which a cache keeps the object.
func Key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
