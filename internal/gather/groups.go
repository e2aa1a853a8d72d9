package gather

import (
	"context"
	"fmt"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const groupsVersion = volume.GroupGroupSnapshot + "/v1"

// aboutGroup reads a VolumeGroupSnapshot with its content and the classes, and the claims and snapshots of its
// namespace, of which it may be made and consist.
func (r *Facts) aboutGroup(ctx context.Context, ns, name string) error {
	g, err := readFrom[groupv1.VolumeGroupSnapshot](ctx, r.client, groupsVersion, "namespaces", ns,
		volume.ResourceGroups, name)
	if apierrors.IsNotFound(err) {
		if _, missing := r.client.Discovery().ServerResourcesForGroupVersion(groupsVersion); apierrors.IsNotFound(missing) {
			return fmt.Errorf("the server has no VolumeGroupSnapshots: their custom resource definitions (%s) are not "+
				"installed", groupsVersion)
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.Groups = []*groupv1.VolumeGroupSnapshot{g}
	c, err := readFrom[groupv1.VolumeGroupSnapshotContent](ctx, r.client, groupsVersion, volume.ResourceGroupContents,
		groupsnapshot.ContentName(g))
	if err == nil {
		r.GroupContents = []*groupv1.VolumeGroupSnapshotContent{c}
	} else if err := r.hidden(err); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	volumes := func(ctx context.Context) error { return r.hidden(r.volumes(ctx)) }
	return r.together(ctx, r.groupClasses, r.claims(ns), volumes, r.snapshots(ns))
}

// hidden notes that somebody may not read what explains snapshots, and returns any other error.
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
	all, err := readFrom[groupv1.VolumeGroupSnapshotClassList](ctx, r.client, groupsVersion, volume.ResourceGroupClasses)
	if err != nil {
		return r.hidden(err)
	}
	r.GroupClasses = kube.Pointers(all.Items)
	return nil
}

// groups reads the VolumeGroupSnapshots of a namespace, or all, and all contents and classes. It reads none if the
// server does not have them or the user may not read them.
func (r *Facts) groups(ns string) read {
	return func(ctx context.Context) error {
		path := []string{volume.ResourceGroups}
		if ns != metav1.NamespaceAll {
			path = []string{"namespaces", ns, volume.ResourceGroups}
		}
		all, err := readFrom[groupv1.VolumeGroupSnapshotList](ctx, r.client, groupsVersion, path...)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Groups = kube.Pointers(all.Items)
		if err := r.groupContents(ctx); err != nil {
			return r.hidden(err)
		}
		return r.groupClasses(ctx)
	}
}

// groupContents reads all contents of groups.
func (r *Facts) groupContents(ctx context.Context) error {
	all, err := readFrom[groupv1.VolumeGroupSnapshotContentList](ctx, r.client, groupsVersion,
		volume.ResourceGroupContents)
	if err == nil {
		r.GroupContents = kube.Pointers(all.Items)
	}
	return err
}
