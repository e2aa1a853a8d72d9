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
func (c *Caches) SnapshotContents() *Cache[*cluster.VolumeSnapshotContent] {
	return optionalFor(c, &c.contents, contentsOf(c.client), volume.ResourceSnapshotContents, cluster.ContentIndexers)
}

// SnapshotClasses returns the cache of VolumeSnapshotClasses.
func (c *Caches) SnapshotClasses() *Cache[*cluster.VolumeSnapshotClass] {
	classes := customOf[cluster.VolumeSnapshotClass, cluster.VolumeSnapshotClassList](c.client,
		snapshotv1.SchemeGroupVersion, volume.ResourceSnapshotClasses, "VolumeSnapshotClass", "")
	return optionalFor(c, &c.snapshotClasses, classes, volume.ResourceSnapshotClasses, nil)
}

// WriteSnapshots returns the cache of VolumeSnapshots with a client to write them.
func (c *Caches) WriteSnapshots(client kubernetes.Interface) Writer[*snapshotv1.VolumeSnapshot] {
	return Writer[*snapshotv1.VolumeSnapshot]{
		c.Snapshots(), "snapshot",
		func(namespace string) API[*snapshotv1.VolumeSnapshot] { return snapshotsOf(client, namespace) },
	}
}

// WriteContents returns the cache of VolumeSnapshotContents with a client to write them.
func (c *Caches) WriteContents(client kubernetes.Interface) Writer[*cluster.VolumeSnapshotContent] {
	return Writer[*cluster.VolumeSnapshotContent]{
		c.SnapshotContents(), "snapshot content",
		func(string) API[*cluster.VolumeSnapshotContent] { return contentsOf(client) },
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
	return customOf[snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](client, snapshotv1.SchemeGroupVersion,
		volume.ResourceSnapshots, volume.KindSnapshot, namespace)
}

func contentsOf(
	client kubernetes.Interface,
) customClient[*cluster.VolumeSnapshotContent, *cluster.VolumeSnapshotContentList] {
	return customOf[cluster.VolumeSnapshotContent, cluster.VolumeSnapshotContentList](client,
		snapshotv1.SchemeGroupVersion, volume.ResourceSnapshotContents, "VolumeSnapshotContent", "")
}
