package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/groupsnapshot"
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
	s, err := readFrom[snapshotv1.VolumeSnapshot](ctx, r.client, SnapshotsVersion, "namespaces", ns,
		volume.ResourceSnapshots, name)
	if err != nil {
		return r.missing(err, SnapshotsVersion, ErrNoSnapshots)
	}
	r.Snapshots = []*snapshotv1.VolumeSnapshot{s}
	content := snapshot.ContentName(s)
	err = aboutContent(ctx, r, &r.SnapshotContents, SnapshotsVersion, volume.ResourceSnapshotContents, content)
	if err != nil {
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

// missing returns the error of an object that could not be read: none if the server has the kind, but not the object,
// and noKind if it does not have the kind.
func (r *Facts) missing(err error, version string, noKind error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := r.client.Discovery().ServerResourcesForGroupVersion(version); apierrors.IsNotFound(err) {
		return noKind
	}
	return nil
}

// aboutContent reads a content, if it exists and the user may read it.
func aboutContent[T any](ctx context.Context, r *Facts, into *[]*T, version, resource, name string) error {
	c, err := readFrom[T](ctx, r.client, version, resource, name)
	if err == nil {
		*into = []*T{c}
	} else if err := r.hidden(err); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

func (r *Facts) snapshotClasses(ctx context.Context) error {
	return r.hidden(listFrom(ctx, r, &r.SnapshotClasses, SnapshotsVersion, volume.ResourceSnapshotClasses))
}

// snapshotContents reads all contents of snapshots.
func (r *Facts) snapshotContents(ctx context.Context) error {
	return listFrom(ctx, r, &r.SnapshotContents, SnapshotsVersion, volume.ResourceSnapshotContents)
}

// snapshots reads the VolumeSnapshots of a namespace, or all, and all contents and classes.
func (r *Facts) snapshots(ns string) read {
	return listAll(r, &r.Snapshots, SnapshotsVersion, volume.ResourceSnapshots, ns, r.snapshotContents, r.snapshotClasses)
}

// listAll reads the objects of a kind in a namespace, or all, and all contents and classes. It reads none if the server
// does not have them or the user may not read them.
func listAll[T any](r *Facts, into *[]*T, version, resource, ns string, contents, classes read) read {
	return func(ctx context.Context) error {
		path := []string{resource}
		if ns != metav1.NamespaceAll {
			path = []string{"namespaces", ns, resource}
		}
		err := listFrom(ctx, r, into, version, path...)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil
		}
		if err == nil {
			err = r.hidden(contents(ctx))
		}
		if err != nil {
			return err
		}
		return classes(ctx)
	}
}

// listFrom reads the objects of a kind of an API.
func listFrom[T any](ctx context.Context, r *Facts, into *[]*T, version string, path ...string) error {
	all, err := readFrom[struct {
		Items []*T `json:"items"`
	}](ctx, r.client, version, path...)
	if err == nil {
		*into = all.Items
	}
	return err
}

// readFrom reads an object or a list of an API, which is GROUP/VERSION.
func readFrom[T any](ctx context.Context, client kubernetes.Interface, version string, path ...string) (*T, error) {
	api := client.CoreV1().RESTClient()
	isNoName := func(segment string) bool { return !kube.IsObjectName(segment) }
	// client-go's fakes have no custom resources.
	if api == (*rest.RESTClient)(nil) || slices.ContainsFunc(path, isNoName) {
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

const groupsVersion = volume.GroupGroupSnapshot + "/v1"

// aboutGroup reads a VolumeGroupSnapshot with its content and the classes, and the claims and snapshots of its
// namespace, of which it may be made and consist.
func (r *Facts) aboutGroup(ctx context.Context, ns, name string) error {
	g, err := readFrom[groupv1.VolumeGroupSnapshot](ctx, r.client, groupsVersion, "namespaces", ns,
		volume.ResourceGroups, name)
	if err != nil {
		return r.missing(err, groupsVersion, errors.New("the server has no VolumeGroupSnapshots: "+
			"their custom resource definitions ("+groupsVersion+") are not installed"))
	}
	r.Groups = []*groupv1.VolumeGroupSnapshot{g}
	content := groupsnapshot.ContentName(g)
	if err := aboutContent(ctx, r, &r.GroupContents, groupsVersion, volume.ResourceGroupContents, content); err != nil {
		return err
	}
	volumes := func(ctx context.Context) error { return r.hidden(r.volumes(ctx)) }
	return r.together(ctx, r.groupClasses, r.claims(ns), volumes, r.snapshots(ns))
}

// hidden notes that the user may not read what explains snapshots, and returns any other error.
func (r *Facts) hidden(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.SnapshotsHidden = true
	return nil
}

func (r *Facts) groupClasses(ctx context.Context) error {
	return r.hidden(listFrom(ctx, r, &r.GroupClasses, groupsVersion, volume.ResourceGroupClasses))
}

// groupContents reads all contents of groups.
func (r *Facts) groupContents(ctx context.Context) error {
	return listFrom(ctx, r, &r.GroupContents, groupsVersion, volume.ResourceGroupContents)
}

// groups reads the VolumeGroupSnapshots of a namespace, or all, and all contents and classes.
func (r *Facts) groups(ns string) read {
	return listAll(r, &r.Groups, groupsVersion, volume.ResourceGroups, ns, r.groupContents, r.groupClasses)
}
