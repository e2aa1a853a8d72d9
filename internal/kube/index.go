package kube

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
)

const indexUID = "uid" // beside the indexes of package cluster

// index has the keys of the objects that are found under a value. Most values
// are of one object.
type index map[string]found

type found struct {
	one  string
	more map[string]struct{}
}

func (f found) keys(yield func(string) bool) {
	if !yield(f.one) {
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
		f.one = key
	case f.one == key:
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
	if f.one != key {
		delete(f.more, key)
		return
	}
	for k := range f.more {
		f.one = k
		delete(f.more, k)
		x[value] = f
		return
	}
	delete(x, value)
}

func uidOf[T Object](o T) []string { return []string{string(o.GetUID())} }

// nodePodIndexers are those of the Pods of one node.
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
