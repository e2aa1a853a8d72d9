package cluster

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

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
