package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Snapshot holds the objects of one kind as a list had them. It is made for one
// goroutine: what it finds objects by is put in order when it is asked for first.
type Snapshot[T metav1.Object] struct {
	all      []T
	indexers Indexers[T]
	objects  map[string]T
	indexes  map[string]map[string][]T
}

// NewSnapshot returns the objects of a list, found by the indexers.
func NewSnapshot[T metav1.Object](list []T, indexers Indexers[T]) *Snapshot[T] {
	if !slices.IsSortedFunc(list, Compare[T]) {
		list = slices.SortedStableFunc(slices.Values(list), Compare[T])
	}
	return &Snapshot[T]{all: list, indexers: indexers, indexes: map[string]map[string][]T{}}
}

// Get returns the object with a key.
func (s *Snapshot[T]) Get(key string) (T, bool) {
	if s.objects == nil {
		s.objects = make(map[string]T, len(s.all))
		for _, o := range s.all {
			s.objects[Key(o)] = o
		}
	}
	o, ok := s.objects[key]
	return o, ok
}

// By returns the objects whose index has the value, ordered by key.
func (s *Snapshot[T]) By(index, value string) []T {
	values, known := s.indexers[index]
	if !known {
		return nil
	}
	at, built := s.indexes[index]
	if !built {
		at = make(map[string][]T, len(s.all))
		for _, o := range s.all {
			for _, v := range values(o) {
				at[v] = append(at[v], o)
			}
		}
		s.indexes[index] = at
	}
	return at[value]
}

// List returns all objects, ordered by key.
func (s *Snapshot[T]) List() []T { return s.all }

// Lists are the objects of a cluster as they were read: all, or at least those
// that a question concerns.
type Lists struct {
	Claims      []*corev1.PersistentVolumeClaim
	Volumes     []*corev1.PersistentVolume
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	Attachments []*storagev1.VolumeAttachment
	Pods        []*corev1.Pod
	Nodes       []*corev1.Node
	CSINodes    []*storagev1.CSINode
}

// View returns what can be looked up in the lists.
func (l Lists) View() View {
	return View{
		Claims:      NewSnapshot(l.Claims, ClaimIndexers()),
		Volumes:     NewSnapshot(l.Volumes, VolumeIndexers()),
		Classes:     NewSnapshot(l.Classes, nil),
		Drivers:     NewSnapshot(l.Drivers, nil),
		Attachments: NewSnapshot(l.Attachments, AttachmentIndexers()),
		Pods:        NewSnapshot(l.Pods, PodIndexers()),
		Nodes:       NewSnapshot(l.Nodes, NodeIndexers()),
		CSINodes:    NewSnapshot(l.CSINodes, nil),
	}
}
