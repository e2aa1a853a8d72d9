package groupsnapshotter

import (
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// watch has everything looked at again that a change can concern: nothing is polled.
func (c *binding) watch() {
	c.Snapshots.Watch(c.groupChanged)
	c.Contents.Watch(c.contentChanged)
	c.snapshots.Watch(c.snapshotChanged)
	c.members.Watch(c.memberChanged)
	c.Caches.GroupClasses().Watch(func(_, _ *groupv1.VolumeGroupSnapshotClass) {
		c.enqueueUntaken(c.Snapshots.List())
	})
	c.Caches.Claims().Watch(c.claimChanged)
	c.Caches.Volumes().Watch(func(before, after *corev1.PersistentVolume) {
		if ref := controller.Latest(before, after).Spec.ClaimRef; ref != nil {
			c.enqueueUntaken(c.Snapshots.By(cluster.GroupsByNamespace, ref.Namespace))
		}
	})
}

// memberChanged has the group looked at that a content is about, also if it is only known by its driver's handle.
func (c *binding) memberChanged(before, after *cluster.VolumeSnapshotContent) {
	last := controller.Latest(before, after)
	ref := last.Spec.VolumeSnapshotRef
	s, ok := c.snapshots.Get(ref.Namespace + "/" + ref.Name)
	if ok {
		c.enqueueParent(s)
	}
	if !ok || groupsnapshot.ParentOf(s) != "" || last.Status == nil || last.Status.VolumeGroupSnapshotHandle == nil {
		return
	}
	for _, of := range c.Contents.By(cluster.ContentsByDriver, last.Spec.Driver) {
		if groupsnapshot.HandleOf(of) == *last.Status.VolumeGroupSnapshotHandle {
			c.enqueue(of.Spec.VolumeGroupSnapshotRef.Namespace, of.Spec.VolumeGroupSnapshotRef.Name)
		}
	}
}

func (c *binding) enqueue(namespace, name string) {
	c.Add(controller.Key{Kind: kindGroup, Namespace: namespace, Name: name})
}

// enqueueUntaken has the groups looked at that have no content yet.
func (c *binding) enqueueUntaken(all []*groupv1.VolumeGroupSnapshot) {
	for _, g := range all {
		if g.Status == nil || g.Status.BoundVolumeGroupSnapshotContentName == nil {
			c.enqueue(g.Namespace, g.Name)
		}
	}
}

// enqueueParent has the group looked at that a snapshot is a member of.
func (c *binding) enqueueParent(s *snapshotv1.VolumeSnapshot) {
	if parent := groupsnapshot.ParentOf(s); parent != "" {
		c.enqueue(s.Namespace, parent)
	}
}

func (c *binding) groupChanged(before, after *groupv1.VolumeGroupSnapshot) {
	last := controller.Latest(before, after)
	if after != nil && after.DeletionTimestamp == nil {
		c.enqueue(after.Namespace, after.Name)
		return
	}
	if after != nil {
		c.enqueue(after.Namespace, after.Name)
	} else {
		// Its content may be waiting for that.
		c.Add(controller.Key{Kind: kindContent, Name: groupsnapshot.ContentName(last)})
	}
	// A member that is being deleted may go now.
	for _, s := range c.snapshots.By(cluster.SnapshotsByGroup, cluster.Key(last)) {
		c.enqueueMember(s)
	}
}

// enqueueMember has a snapshot looked at that is being deleted and held by its group.
func (c *binding) enqueueMember(s *snapshotv1.VolumeSnapshot) {
	if s.DeletionTimestamp != nil && slices.Contains(s.Finalizers, volume.FinalizerSnapshotInGroup) {
		c.Add(controller.Key{Kind: kindMember, Namespace: s.Namespace, Name: s.Name})
	}
}

func (c *binding) contentChanged(before, after *groupv1.VolumeGroupSnapshotContent) {
	last := controller.Latest(before, after)
	if after != nil {
		c.Add(controller.Key{Kind: kindContent, Name: after.Name})
	}
	ref := last.Spec.VolumeGroupSnapshotRef
	c.enqueue(ref.Namespace, ref.Name)
	for _, g := range c.Snapshots.By(cluster.GroupsByContent, last.Name) {
		c.enqueue(g.Namespace, g.Name)
	}
}

func (c *binding) snapshotChanged(before, after *snapshotv1.VolumeSnapshot) {
	c.enqueueParent(controller.Latest(before, after))
	if after != nil {
		c.enqueueMember(after)
	}
}

func (c *binding) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	last := controller.Latest(before, after)
	c.enqueueUntaken(c.Snapshots.By(cluster.GroupsByNamespace, last.Namespace))
	if !provision.IsSnapshot(last) || after != nil && after.Spec.VolumeName == "" {
		return
	}
	// The group of the snapshot that it was made from is not held by it any more.
	if s, ok := c.snapshots.Get(last.Namespace + "/" + last.Spec.DataSource.Name); ok {
		c.enqueueParent(s)
	}
}
