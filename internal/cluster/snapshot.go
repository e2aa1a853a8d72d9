package cluster

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
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

// Lists holds the objects of a cluster that were read: all of them, or at least those that a question concerns.
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

// Names of the indexes of snapshots and of their contents.
const (
	// SnapshotsByClaim: "namespace/name" of the claim that a snapshot is taken of.
	SnapshotsByClaim = "claim"
	// SnapshotsByContent: the name of the content that a snapshot is bound to, or is to be bound to.
	SnapshotsByContent = "content"
	// SnapshotsByClass: the name of a snapshot's class; "" for snapshots without one.
	SnapshotsByClass = "class"
	// SnapshotsByGroup: "namespace/name" of the group snapshot that a snapshot is a member of.
	SnapshotsByGroup = "group"
	// GroupsByNamespace: the namespace of a group snapshot.
	GroupsByNamespace = "namespace"
	// GroupsByContent: the name of the content that a group snapshot is bound to, or is to be bound to.
	GroupsByContent = "content"
	// ContentsBySnapshot: "namespace/name" of spec.volumeSnapshotRef.
	ContentsBySnapshot = "snapshot"
	// ContentsByDriver: spec.driver.
	ContentsByDriver = "driver"
	// ContentsByHandle: the handles of drivers' snapshots that a content names, in its source or in its status.
	ContentsByHandle = "handle"
)

// GroupIndexers returns the indexes of VolumeGroupSnapshots.
func GroupIndexers() Indexers[*groupv1.VolumeGroupSnapshot] {
	return Indexers[*groupv1.VolumeGroupSnapshot]{
		GroupsByNamespace: func(g *groupv1.VolumeGroupSnapshot) []string { return []string{g.Namespace} },
		GroupsByContent: func(g *groupv1.VolumeGroupSnapshot) []string {
			if g.Status != nil && g.Status.BoundVolumeGroupSnapshotContentName != nil {
				return nonEmpty(*g.Status.BoundVolumeGroupSnapshotContentName)
			}
			return nonEmpty(ptr.Deref(g.Spec.Source.VolumeGroupSnapshotContentName, ""))
		},
	}
}

// GroupContentIndexers returns the indexes of VolumeGroupSnapshotContents.
func GroupContentIndexers() Indexers[*groupv1.VolumeGroupSnapshotContent] {
	return Indexers[*groupv1.VolumeGroupSnapshotContent]{
		ContentsByDriver: func(c *groupv1.VolumeGroupSnapshotContent) []string { return []string{c.Spec.Driver} },
	}
}

// GroupOf returns the reference to the group snapshot that a snapshot is a member of; nil if it is of none.
func GroupOf(s *snapshotv1.VolumeSnapshot) *metav1.OwnerReference {
	for i, owner := range s.OwnerReferences {
		if owner.Kind == volume.KindGroup && strings.HasPrefix(owner.APIVersion, volume.GroupGroupSnapshot+"/") {
			return &s.OwnerReferences[i]
		}
	}
	return nil
}

// SnapshotIndexers returns the indexes of VolumeSnapshots.
func SnapshotIndexers() Indexers[*snapshotv1.VolumeSnapshot] {
	return Indexers[*snapshotv1.VolumeSnapshot]{
		SnapshotsByClaim: func(s *snapshotv1.VolumeSnapshot) []string {
			if claim := ptr.Deref(s.Spec.Source.PersistentVolumeClaimName, ""); claim != "" {
				return []string{s.Namespace + "/" + claim}
			}
			return nil
		},
		SnapshotsByContent: func(s *snapshotv1.VolumeSnapshot) []string {
			if s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil {
				return nonEmpty(*s.Status.BoundVolumeSnapshotContentName)
			}
			return nonEmpty(ptr.Deref(s.Spec.Source.VolumeSnapshotContentName, ""))
		},
		SnapshotsByGroup: func(s *snapshotv1.VolumeSnapshot) []string {
			if group := GroupOf(s); group != nil {
				return []string{s.Namespace + "/" + group.Name}
			}
			return nil
		},
		SnapshotsByClass: func(s *snapshotv1.VolumeSnapshot) []string {
			return []string{ptr.Deref(s.Spec.VolumeSnapshotClassName, "")}
		},
	}
}

// ContentIndexers returns the indexes of VolumeSnapshotContents.
func ContentIndexers() Indexers[*VolumeSnapshotContent] {
	return Indexers[*VolumeSnapshotContent]{
		ContentsBySnapshot: func(c *VolumeSnapshotContent) []string {
			return []string{c.Spec.VolumeSnapshotRef.Namespace + "/" + c.Spec.VolumeSnapshotRef.Name}
		},
		ContentsByDriver: func(c *VolumeSnapshotContent) []string { return []string{c.Spec.Driver} },
		ContentsByHandle: func(c *VolumeSnapshotContent) []string {
			handles := nonEmpty(ptr.Deref(c.Spec.Source.SnapshotHandle, ""))
			if c.Status == nil || c.Status.SnapshotHandle == nil || slices.Contains(handles, *c.Status.SnapshotHandle) {
				return handles
			}
			return append(handles, *c.Status.SnapshotHandle)
		},
	}
}
