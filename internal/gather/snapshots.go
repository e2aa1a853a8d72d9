package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// SnapshotsVersion is the group and version of VolumeSnapshots.
const SnapshotsVersion = volume.GroupSnapshot + "/v1"

// ErrNoSnapshots is the error of a server without VolumeSnapshots.
var ErrNoSnapshots = errors.New("the server has no VolumeSnapshots: " +
	"their custom resource definitions (" + SnapshotsVersion + ") are not installed")

// aboutSnapshot reads a VolumeSnapshot with its content and the classes, and what concerns its source claim.
func (r *Facts) aboutSnapshot(ctx context.Context, ns, name string) error {
	s, err := readCustom[snapshotv1.VolumeSnapshot](ctx, r.client, "namespaces", ns, volume.ResourceSnapshots, name)
	if apierrors.IsNotFound(err) {
		_, missing := r.client.Discovery().ServerResourcesForGroupVersion(SnapshotsVersion)
		if apierrors.IsNotFound(missing) {
			return ErrNoSnapshots
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.Snapshots = []*snapshotv1.VolumeSnapshot{s}
	c, err := readCustom[snapshotv1.VolumeSnapshotContent](ctx, r.client, volume.ResourceSnapshotContents,
		snapshot.ContentName(s))
	if err == nil {
		r.SnapshotContents = []*snapshotv1.VolumeSnapshotContent{c}
	} else if err := r.hidden(err); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := r.snapshotClasses(ctx); err != nil {
		return err
	}
	if claim := snapshot.ClaimOf(s); claim != "" {
		return r.aboutClaim(ctx, ns, claim)
	}
	return nil
}

func (r *Facts) snapshotClasses(ctx context.Context) error {
	classes, err := readCustom[snapshotv1.VolumeSnapshotClassList](ctx, r.client, volume.ResourceSnapshotClasses)
	if err != nil {
		return r.hidden(err)
	}
	r.SnapshotClasses = kube.Pointers(classes.Items)
	return nil
}

// snapshots reads the VolumeSnapshots of a namespace, or all, and all contents and classes. It reads none if the
// server does not have them or the user may not read them.
func (r *Facts) snapshots(ns string) read {
	return func(ctx context.Context) error {
		path := []string{volume.ResourceSnapshots}
		if ns != metav1.NamespaceAll {
			path = []string{"namespaces", ns, volume.ResourceSnapshots}
		}
		all, err := readCustom[snapshotv1.VolumeSnapshotList](ctx, r.client, path...)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Snapshots = kube.Pointers(all.Items)
		if err := r.snapshotContents(ctx); r.hidden(err) != nil {
			return err
		}
		return r.snapshotClasses(ctx)
	}
}

// snapshotContents reads all contents of snapshots.
func (r *Facts) snapshotContents(ctx context.Context) error {
	all, err := readCustom[snapshotv1.VolumeSnapshotContentList](ctx, r.client, volume.ResourceSnapshotContents)
	if err == nil {
		r.SnapshotContents = kube.Pointers(all.Items)
	}
	return err
}

// readCustom reads an object or a list of the API of snapshots.
func readCustom[T any](ctx context.Context, client kubernetes.Interface, path ...string) (*T, error) {
	return readFrom[T](ctx, client, SnapshotsVersion, path...)
}

// readFrom reads an object or a list of an API, which is GROUP/VERSION.
func readFrom[T any](ctx context.Context, client kubernetes.Interface, version string, path ...string) (*T, error) {
	api := client.CoreV1().RESTClient()
	if api == (*rest.RESTClient)(nil) {
		// client-go's fakes have no custom resources.
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: path[0]}, "")
	}
	request := api.Get().AbsPath(append([]string{"/apis/" + version}, path...)...)
	data, err := request.SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("read %s: %w", strings.Join(path, "/"), err)
	}
	return out, nil
}
