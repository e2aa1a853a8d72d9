package gather

import (
	"context"
	"errors"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/volume"
)

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
