package kube

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Snapshots returns the cache of VolumeSnapshots. It and the caches of the other kinds of this API are optional: they
// wait until the custom resources of snapshots are installed.
func (c *Caches) Snapshots() *Cache[*snapshotv1.VolumeSnapshot] {
	return optionalFor(c, &c.snapshots, snapshotsOf(c.client, ""), volume.ResourceSnapshots, cluster.SnapshotIndexers)
}

// SnapshotContents returns the cache of VolumeSnapshotContents.
func (c *Caches) SnapshotContents() *Cache[*snapshotv1.VolumeSnapshotContent] {
	return optionalFor(c, &c.contents, contentsOf(c.client), volume.ResourceSnapshotContents, cluster.ContentIndexers)
}

// SnapshotClasses returns the cache of VolumeSnapshotClasses.
func (c *Caches) SnapshotClasses() *Cache[*snapshotv1.VolumeSnapshotClass] {
	return optionalFor(c, &c.snapshotClasses, customClient[*snapshotv1.VolumeSnapshotClass,
		*snapshotv1.VolumeSnapshotClassList]{
		rest: c.client.Discovery().RESTClient(), version: snapshotv1.SchemeGroupVersion,
		resource: volume.ResourceSnapshotClasses, kind: "VolumeSnapshotClass",
		object: func() *snapshotv1.VolumeSnapshotClass { return &snapshotv1.VolumeSnapshotClass{} },
		list:   func() *snapshotv1.VolumeSnapshotClassList { return &snapshotv1.VolumeSnapshotClassList{} },
	}, volume.ResourceSnapshotClasses, nil)
}

// WriteSnapshots returns the cache of VolumeSnapshots with a client to write them.
func (c *Caches) WriteSnapshots(client kubernetes.Interface) Writer[*snapshotv1.VolumeSnapshot] {
	return Writer[*snapshotv1.VolumeSnapshot]{
		c.Snapshots(), "snapshot",
		func(namespace string) API[*snapshotv1.VolumeSnapshot] { return snapshotsOf(client, namespace) },
	}
}

// WriteContents returns the cache of VolumeSnapshotContents with a client to write them.
func (c *Caches) WriteContents(client kubernetes.Interface) Writer[*snapshotv1.VolumeSnapshotContent] {
	return Writer[*snapshotv1.VolumeSnapshotContent]{
		c.SnapshotContents(), "snapshot content",
		func(string) API[*snapshotv1.VolumeSnapshotContent] { return contentsOf(client) },
	}
}

// optionalFor is cacheFor for a resource that a server may not have.
func optionalFor[T Object, L runtime.Object](
	c *Caches, field **Cache[T], api listWatcher[L], resource string, indexers func() cluster.Indexers[T],
) *Cache[T] {
	k := cacheFor(c, field, api, "", indexers)
	k.optional = resource
	return k
}

func snapshotsOf(
	client kubernetes.Interface, namespace string,
) customClient[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotList] {
	return customClient[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotList]{
		rest: client.Discovery().RESTClient(), version: snapshotv1.SchemeGroupVersion, namespace: namespace,
		resource: volume.ResourceSnapshots,
		kind:     volume.KindSnapshot,
		object:   func() *snapshotv1.VolumeSnapshot { return &snapshotv1.VolumeSnapshot{} },
		list:     func() *snapshotv1.VolumeSnapshotList { return &snapshotv1.VolumeSnapshotList{} },
	}
}

func contentsOf(
	client kubernetes.Interface,
) customClient[*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContentList] {
	return customClient[*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContentList]{
		rest: client.Discovery().RESTClient(), version: snapshotv1.SchemeGroupVersion,
		resource: volume.ResourceSnapshotContents, kind: "VolumeSnapshotContent",
		object: func() *snapshotv1.VolumeSnapshotContent { return &snapshotv1.VolumeSnapshotContent{} },
		list:   func() *snapshotv1.VolumeSnapshotContentList { return &snapshotv1.VolumeSnapshotContentList{} },
	}
}
