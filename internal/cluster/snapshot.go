package cluster

import (
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Snapshot holds the objects of a list. It builds each index at its first use, so it must be used
// by one goroutine only.
type Snapshot[T metav1.Object] struct {
	all      []T
	indexers Indexers[T]
	objects  map[string]T
	indexes  map[string]map[string][]T
}

// NewSnapshot returns a Snapshot of a list with the given indexes.
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

// Lists holds the objects of a cluster that were read: all of them, or at least those that a
// question concerns.
type Lists struct {
	Claims      []*corev1.PersistentVolumeClaim
	Volumes     []*corev1.PersistentVolume
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	Attachments []*storagev1.VolumeAttachment
	Pods        []*corev1.Pod
	Nodes       []*corev1.Node
	CSINodes    []*storagev1.CSINode

	Snapshots        []*snapshotv1.VolumeSnapshot
	SnapshotContents []*VolumeSnapshotContent
	SnapshotClasses  []*VolumeSnapshotClass
	Groups           []*groupv1.VolumeGroupSnapshot
	GroupContents    []*groupv1.VolumeGroupSnapshotContent
	GroupClasses     []*groupv1.VolumeGroupSnapshotClass
}

// View returns a View of the lists.
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

		Snapshots:        NewSnapshot(l.Snapshots, SnapshotIndexers()),
		SnapshotContents: NewSnapshot(l.SnapshotContents, ContentIndexers()),
		SnapshotClasses:  NewSnapshot(l.SnapshotClasses, nil),
		Groups:           NewSnapshot(l.Groups, GroupIndexers()),
		GroupContents:    NewSnapshot(l.GroupContents, GroupContentIndexers()),
		GroupClasses:     NewSnapshot(l.GroupClasses, nil),
	}
}
