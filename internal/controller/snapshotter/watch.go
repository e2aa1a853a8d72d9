package snapshotter

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// watch has everything looked at again that a change can concern: nothing is polled.
func (c *binding) watch() {
	c.Snapshots.Watch(c.snapshotChanged)
	c.Contents.Watch(c.contentChanged)
	c.claims.Watch(c.claimChanged)
	c.classes.Watch(func(before, after *cluster.VolumeSnapshotClass) {
		for _, name := range []string{controller.Latest(before, after).Name, ""} {
			c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClass, name))
		}
	})
	c.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		if ref := controller.Latest(before, after).Spec.ClaimRef; ref != nil {
			c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClaim, ref.Namespace+"/"+ref.Name))
		}
	})
}

func (c *binding) enqueue(s *snapshotv1.VolumeSnapshot) {
	c.Add(controller.Key{Kind: kindSnapshot, Namespace: s.Namespace, Name: s.Name})
}

func (c *binding) enqueueUnready(all []*snapshotv1.VolumeSnapshot) {
	for _, s := range all {
		if !snapshot.IsReady(s) {
			c.enqueue(s)
		}
	}
}

func (c *binding) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	last := controller.Latest(before, after)
	if after != nil {
		c.enqueue(after)
	}
	if claim := snapshot.ClaimOf(last); claim != "" && (after == nil || snapshot.IsReady(after)) {
		c.Add(controller.Key{Kind: kindClaim, Namespace: last.Namespace, Name: claim})
	}
	if after == nil {
		// Its content may be waiting for that.
		c.Add(controller.Key{Kind: kindContent, Name: snapshot.ContentName(last)})
	}
}

func (c *binding) contentChanged(before, after *cluster.VolumeSnapshotContent) {
	last := controller.Latest(before, after)
	if after != nil {
		c.Add(controller.Key{Kind: kindContent, Name: after.Name})
	}
	ref := last.Spec.VolumeSnapshotRef
	c.Add(controller.Key{Kind: kindSnapshot, Namespace: ref.Namespace, Name: ref.Name})
	for _, s := range c.Snapshots.By(cluster.SnapshotsByContent, last.Name) {
		c.enqueue(s)
	}
}

func (c *binding) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	last := controller.Latest(before, after)
	c.enqueueUnready(c.Snapshots.By(cluster.SnapshotsByClaim, cluster.Key(last)))
	if after != nil && slices.Contains(after.Finalizers, volume.FinalizerSnapshotSource) {
		c.Add(controller.Key{Kind: kindClaim, Namespace: after.Namespace, Name: after.Name})
	}
	if provision.IsSnapshot(last) && (after == nil || after.Spec.VolumeName != "") {
		// The snapshot is not held by it any more.
		c.Add(controller.Key{Kind: kindSnapshot, Namespace: last.Namespace, Name: last.Spec.DataSource.Name})
	}
}
