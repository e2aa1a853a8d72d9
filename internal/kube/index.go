package kube

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
)

// indexUID is an index by the object's UID. The other indexes are those of package cluster.
const indexUID = "uid"

// index maps a value to the keys of the objects that have it.
type index map[string]keySet

// keySet is a non-empty set of keys. Most have one key, which needs no map.
type keySet struct {
	first string
	more  map[string]struct{}
}

func (f keySet) keys(yield func(string) bool) {
	if !yield(f.first) {
		return
	}
	for k := range f.more {
		if !yield(k) {
			return
		}
	}
}

func (x index) add(value, key string) {
	f, ok := x[value]
	switch {
	case !ok:
		f.first = key
	case f.first == key:
		return
	case f.more == nil:
		f.more = map[string]struct{}{key: {}}
	default:
		f.more[key] = struct{}{}
	}
	x[value] = f
}

func (x index) remove(value, key string) {
	f := x[value]
	if f.first != key {
		delete(f.more, key)
		return
	}
	for k := range f.more {
		f.first = k
		delete(f.more, k)
		x[value] = f
		return
	}
	delete(x, value)
}

func uidOf[T Object](o T) []string { return []string{string(o.GetUID())} }

// nodePodIndexers returns the indexes of the Pods of a node's caches.
func nodePodIndexers() cluster.Indexers[*corev1.Pod] {
	all := cluster.PodIndexers()
	all[indexUID] = uidOf[*corev1.Pod]
	return all
}

func claimIndexers() cluster.Indexers[*corev1.PersistentVolumeClaim] {
	all := cluster.ClaimIndexers()
	all[indexUID] = uidOf[*corev1.PersistentVolumeClaim]
	return all
}
