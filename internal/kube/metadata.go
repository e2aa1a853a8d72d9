package kube

import (
	"context"
	"net/http"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

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
	r := o.client.Discovery().RESTClient().Verb(http.MethodGet).AbsPath("apis", volume.GroupMetadata,
		volume.MetadataVersion).Resource(volume.ResourceMetadataServices).Name(driver)
	return do(ctx, r, &cluster.SnapshotMetadataService{})
}
