package kube

import (
	"context"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	return optionalFor(c, &c.contents, contentsOf(c.client, ""), volume.ResourceSnapshotContents, cluster.ContentIndexers)
}

// SnapshotClasses returns the cache of VolumeSnapshotClasses.
func (c *Caches) SnapshotClasses() *Cache[*cluster.VolumeSnapshotClass] {
	return optionalFor(c, &c.snapshotClasses, classesOf(c.client), volume.ResourceSnapshotClasses, nil)
}

// WriteSnapshots returns the cache of VolumeSnapshots with a client to write them.
func (c *Caches) WriteSnapshots(client kubernetes.Interface) Writer[*snapshotv1.VolumeSnapshot] {
	return customWriter(c.Snapshots(), "snapshot", client, snapshotsOf)
}

// WriteContents returns the cache of VolumeSnapshotContents with a client to write them.
func (c *Caches) WriteContents(client kubernetes.Interface) Writer[*cluster.VolumeSnapshotContent] {
	return customWriter(c.SnapshotContents(), "snapshot content", client, contentsOf)
}

// optionalFor is cacheFor for a resource that a server may not have.
func optionalFor[T Object, L runtime.Object](
	c *Caches, field **Cache[T], api listWatcher[L], resource string, indexers func() cluster.Indexers[T],
) *Cache[T] {
	k := cacheFor(c, field, api, "", indexers)
	k.optional = resource
	return k
}

// customWriter returns a cache with a client to write what it holds.
func customWriter[T Object, L runtime.Object](
	c *Cache[T], kind string, client kubernetes.Interface, of func(kubernetes.Interface, string) customClient[T, L],
) Writer[T] {
	return Writer[T]{c, kind, func(namespace string) API[T] { return of(client, namespace) }}
}

func snapshotsOf(
	client kubernetes.Interface, namespace string,
) customClient[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotList] {
	return customOf[snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](client, snapshotv1.SchemeGroupVersion,
		volume.ResourceSnapshots, volume.KindSnapshot, namespace)
}

func contentsOf(
	client kubernetes.Interface, namespace string,
) customClient[*cluster.VolumeSnapshotContent, *cluster.VolumeSnapshotContentList] {
	return customOf[cluster.VolumeSnapshotContent, cluster.VolumeSnapshotContentList](client,
		snapshotv1.SchemeGroupVersion, volume.ResourceSnapshotContents, "VolumeSnapshotContent", namespace)
}

func classesOf(
	client kubernetes.Interface,
) customClient[*cluster.VolumeSnapshotClass, *cluster.VolumeSnapshotClassList] {
	return customOf[cluster.VolumeSnapshotClass, cluster.VolumeSnapshotClassList](client,
		snapshotv1.SchemeGroupVersion, volume.ResourceSnapshotClasses, "VolumeSnapshotClass", "")
}

// Groups returns the cache of VolumeGroupSnapshots.
func (c *Caches) Groups() *Cache[*groupv1.VolumeGroupSnapshot] {
	return optionalFor(c, &c.groups, groupsOf(c.client, ""), volume.ResourceGroups, cluster.GroupIndexers)
}

// WriteGroups returns the cache of VolumeGroupSnapshots with a client to write them.
func (c *Caches) WriteGroups(client kubernetes.Interface) Writer[*groupv1.VolumeGroupSnapshot] {
	return customWriter(c.Groups(), "group snapshot", client, groupsOf)
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
	return optionalFor(c, &c.groupContents, groupContentsOf(c.client, ""), volume.ResourceGroupContents,
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
	return customWriter(c.GroupContents(), "group snapshot content", client, groupContentsOf)
}

func groupContentsOf(
	client kubernetes.Interface, namespace string,
) customClient[*groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotContentList] {
	return customOf[groupv1.VolumeGroupSnapshotContent, groupv1.VolumeGroupSnapshotContentList](client,
		groupv1.SchemeGroupVersion, volume.ResourceGroupContents, "VolumeGroupSnapshotContent", namespace)
}

// SnapshotObjects reads the objects of snapshots from the API server, one at a time. It is for programs that need few
// of them and keep no cache.
type SnapshotObjects struct{ client kubernetes.Interface }

// NewSnapshotObjects returns what reads with a client.
func NewSnapshotObjects(client kubernetes.Interface) SnapshotObjects { return SnapshotObjects{client} }

// Snapshot reads a VolumeSnapshot.
func (o SnapshotObjects) Snapshot(ctx context.Context, namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	return snapshotsOf(o.client, namespace).Get(ctx, name, metav1.GetOptions{})
}

// Content reads a VolumeSnapshotContent.
func (o SnapshotObjects) Content(ctx context.Context, name string) (*cluster.VolumeSnapshotContent, error) {
	return contentsOf(o.client, "").Get(ctx, name, metav1.GetOptions{})
}

// Class reads a VolumeSnapshotClass.
func (o SnapshotObjects) Class(ctx context.Context, name string) (*cluster.VolumeSnapshotClass, error) {
	return classesOf(o.client).Get(ctx, name, metav1.GetOptions{})
}

// Classes reads all VolumeSnapshotClasses.
func (o SnapshotObjects) Classes(ctx context.Context) ([]*cluster.VolumeSnapshotClass, error) {
	list, err := classesOf(o.client).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []*cluster.VolumeSnapshotClass
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// MetadataService reads the SnapshotMetadataService of a driver.
func (o SnapshotObjects) MetadataService(
	ctx context.Context, driver string,
) (*cluster.SnapshotMetadataService, error) {
	return servicesOf(o.client).Get(ctx, driver, metav1.GetOptions{})
}

// MetadataServices reads all SnapshotMetadataServices.
func (o SnapshotObjects) MetadataServices(ctx context.Context) ([]cluster.SnapshotMetadataService, error) {
	list, err := servicesOf(o.client).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// WriteMetadataServices returns a client to write SnapshotMetadataServices.
func WriteMetadataServices(client kubernetes.Interface) API[*cluster.SnapshotMetadataService] {
	return servicesOf(client)
}

func servicesOf(
	client kubernetes.Interface,
) customClient[*cluster.SnapshotMetadataService, *cluster.SnapshotMetadataServiceList] {
	return customOf[cluster.SnapshotMetadataService, cluster.SnapshotMetadataServiceList](client,
		schema.GroupVersion{Group: volume.GroupMetadata, Version: volume.MetadataVersion},
		volume.ResourceMetadataServices, "SnapshotMetadataService", "")
}
