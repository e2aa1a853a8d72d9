package kube

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Groups returns the cache of VolumeGroupSnapshots.
func (c *Caches) Groups() *Cache[*groupv1.VolumeGroupSnapshot] {
	return optionalFor(c, &c.groups, groupsOf(c.client, ""), volume.ResourceGroups, cluster.GroupIndexers)
}

// WriteGroups returns the cache of VolumeGroupSnapshots with a client to write them.
func (c *Caches) WriteGroups(client kubernetes.Interface) Writer[*groupv1.VolumeGroupSnapshot] {
	return Writer[*groupv1.VolumeGroupSnapshot]{
		c.Groups(), "group snapshot",
		func(namespace string) API[*groupv1.VolumeGroupSnapshot] { return groupsOf(client, namespace) },
	}
}

func groupsOf(
	client kubernetes.Interface, namespace string,
) customClient[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotList] {
	return customOf[groupv1.VolumeGroupSnapshot, groupv1.VolumeGroupSnapshotList](client, groupv1.SchemeGroupVersion,
		volume.ResourceGroups, volume.KindGroup, namespace)
}

// GroupContents returns the cache of VolumeGroupSnapshotContents. It and the other caches of this API are optional,
// like those of snapshots.
func (c *Caches) GroupContents() *Cache[*groupv1.VolumeGroupSnapshotContent] {
	return optionalFor(c, &c.groupContents, groupContentsOf(c.client), volume.ResourceGroupContents,
		cluster.GroupContentIndexers)
}

// GroupClasses returns the cache of VolumeGroupSnapshotClasses.
func (c *Caches) GroupClasses() *Cache[*groupv1.VolumeGroupSnapshotClass] {
	classes := customOf[groupv1.VolumeGroupSnapshotClass, groupv1.VolumeGroupSnapshotClassList](c.client,
		groupv1.SchemeGroupVersion, volume.ResourceGroupClasses, "VolumeGroupSnapshotClass", "")
	return optionalFor(c, &c.groupClasses, classes, volume.ResourceGroupClasses, nil)
}

// WriteGroupContents returns the cache of VolumeGroupSnapshotContents with a client to write them.
func (c *Caches) WriteGroupContents(client kubernetes.Interface) Writer[*groupv1.VolumeGroupSnapshotContent] {
	return Writer[*groupv1.VolumeGroupSnapshotContent]{
		c.GroupContents(), "group snapshot content",
		func(string) API[*groupv1.VolumeGroupSnapshotContent] { return groupContentsOf(client) },
	}
}

func groupContentsOf(
	client kubernetes.Interface,
) customClient[*groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotContentList] {
	return customOf[groupv1.VolumeGroupSnapshotContent, groupv1.VolumeGroupSnapshotContentList](client,
		groupv1.SchemeGroupVersion, volume.ResourceGroupContents, "VolumeGroupSnapshotContent", "")
}
