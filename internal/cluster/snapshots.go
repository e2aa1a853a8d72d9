package cluster

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/utils/ptr"
)

// Names of the indexes of snapshots and of their contents.
const (
	// SnapshotsByClaim: "namespace/name" of the claim that a snapshot is taken of.
	SnapshotsByClaim = "claim"
	// SnapshotsByContent: the name of the content that a snapshot is bound to, or is to be bound to.
	SnapshotsByContent = "content"
	// SnapshotsByClass: the name of a snapshot's class; "" for snapshots without one.
	SnapshotsByClass = "class"
	// ContentsBySnapshot: "namespace/name" of spec.volumeSnapshotRef.
	ContentsBySnapshot = "snapshot"
	// ContentsByDriver: spec.driver.
	ContentsByDriver = "driver"
)

// GroupContentIndexers returns the indexes of VolumeGroupSnapshotContents.
func GroupContentIndexers() Indexers[*groupv1.VolumeGroupSnapshotContent] {
	return Indexers[*groupv1.VolumeGroupSnapshotContent]{
		ContentsByDriver: func(c *groupv1.VolumeGroupSnapshotContent) []string { return []string{c.Spec.Driver} },
	}
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
		SnapshotsByClass: func(s *snapshotv1.VolumeSnapshot) []string {
			return []string{ptr.Deref(s.Spec.VolumeSnapshotClassName, "")}
		},
	}
}

// ContentIndexers returns the indexes of VolumeSnapshotContents.
func ContentIndexers() Indexers[*snapshotv1.VolumeSnapshotContent] {
	return Indexers[*snapshotv1.VolumeSnapshotContent]{
		ContentsBySnapshot: func(c *snapshotv1.VolumeSnapshotContent) []string {
			return []string{c.Spec.VolumeSnapshotRef.Namespace + "/" + c.Spec.VolumeSnapshotRef.Name}
		},
		ContentsByDriver: func(c *snapshotv1.VolumeSnapshotContent) []string { return []string{c.Spec.Driver} },
	}
}
