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
	return customClient[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotList]{
		rest: client.Discovery().RESTClient(), version: groupv1.SchemeGroupVersion,
		resource: volume.ResourceGroups, kind: volume.KindGroup, namespace: namespace,
		object: func() *groupv1.VolumeGroupSnapshot { return &groupv1.VolumeGroupSnapshot{} },
		list:   func() *groupv1.VolumeGroupSnapshotList { return &groupv1.VolumeGroupSnapshotList{} },
	}
}

// GroupContents returns the cache of VolumeGroupSnapshotContents. It and the other caches of this API are optional,
// like those of snapshots.
func (c *Caches) GroupContents() *Cache[*groupv1.VolumeGroupSnapshotContent] {
	return optionalFor(c, &c.groupContents, groupContentsOf(c.client), volume.ResourceGroupContents,
		cluster.GroupContentIndexers)
}

// GroupClasses returns the cache of VolumeGroupSnapshotClasses.
func (c *Caches) GroupClasses() *Cache[*groupv1.VolumeGroupSnapshotClass] {
	return optionalFor(c, &c.groupClasses, customClient[*groupv1.VolumeGroupSnapshotClass,
		*groupv1.VolumeGroupSnapshotClassList]{
		rest: c.client.Discovery().RESTClient(), version: groupv1.SchemeGroupVersion,
		resource: volume.ResourceGroupClasses, kind: "VolumeGroupSnapshotClass",
		object: func() *groupv1.VolumeGroupSnapshotClass { return &groupv1.VolumeGroupSnapshotClass{} },
		list:   func() *groupv1.VolumeGroupSnapshotClassList { return &groupv1.VolumeGroupSnapshotClassList{} },
	}, volume.ResourceGroupClasses, nil)
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
	return customClient[*groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotContentList]{
		rest: client.Discovery().RESTClient(), version: groupv1.SchemeGroupVersion,
		resource: volume.ResourceGroupContents, kind: "VolumeGroupSnapshotContent",
		object: func() *groupv1.VolumeGroupSnapshotContent { return &groupv1.VolumeGroupSnapshotContent{} },
		list:   func() *groupv1.VolumeGroupSnapshotContentList { return &groupv1.VolumeGroupSnapshotContentList{} },
	}
}
