package snapshotmetadata

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

var errNoAudience = errors.New("the SnapshotMetadataService of the driver has no audience")

// ask is what is common to both requests.
type ask struct {
	Token, Namespace, Snapshot string
	From                       int64
	Most                       int32
	// Delta says that the blocks are those that have changed since the snapshot with the handle Base.
	Delta bool
	Base  string
}

// maxHandle is how long the handle of a snapshot may be, in bytes. CSI says 128, and some drivers exceed that.
const maxHandle = 1 << 10

// problem returns what is wrong with a request, or "".
func (a ask) problem() string {
	name, base := "snapshot_name", a.Delta && a.Base == ""
	if a.Delta {
		name = "target_snapshot_name"
	}
	switch {
	case a.Token == "":
		return "security_token is empty"
	case len(validation.IsDNS1123Label(a.Namespace)) > 0:
		return "namespace is not a name of a namespace"
	case len(validation.IsDNS1123Subdomain(a.Snapshot)) > 0:
		return name + " is not a name of a VolumeSnapshot"
	case base:
		return "base_snapshot_id is empty"
	case len(a.Base) > maxHandle:
		return fmt.Sprintf("base_snapshot_id has %d bytes, %d are allowed", len(a.Base), maxHandle)
	case a.From < 0:
		return "starting_offset is negative"
	case a.Most < 0:
		return "max_results is negative"
	}
	return ""
}

// target is the snapshot of a driver call.
type target struct {
	driver  *csi.Driver
	handle  string
	secrets map[string]string
}

// find returns the driver's snapshot of a VolumeSnapshot, with the Secret of the driver's call. The client may read the
// snapshot, so errors say what is wrong with it.
func (s *server) find(ctx context.Context, a ask) (target, error) {
	vs, err := s.objects.Snapshot(ctx, a.Namespace, a.Snapshot)
	if apierrors.IsNotFound(err) {
		return target{}, status.Errorf(codes.NotFound, "VolumeSnapshot %s/%s does not exist", a.Namespace, a.Snapshot)
	}
	if err != nil {
		return target{}, s.unavailable("read the VolumeSnapshot", err)
	}
	if err := unready(vs); err != nil {
		return target{}, err
	}
	content, err := s.objects.Content(ctx, *vs.Status.BoundVolumeSnapshotContentName)
	if err != nil {
		return target{}, s.unavailable("read the VolumeSnapshotContent", err)
	}
	if err := unusable(vs, content, s.Driver); err != nil {
		return target{}, err
	}
	driver, err := s.driverOf(content)
	if err != nil {
		return target{}, err
	}
	ref, err := s.secretOf(ctx, vs, content)
	if err != nil {
		return target{}, err
	}
	secrets, err := kube.SecretData(ctx, s.Client, ref)
	if err != nil {
		return target{}, s.unavailable("read the Secret for the driver", err)
	}
	return target{driver, *content.Status.SnapshotHandle, secrets}, nil
}

// driverOf returns the driver that has the snapshot of a content.
func (s *server) driverOf(c *cluster.VolumeSnapshotContent) (*csi.Driver, error) {
	name, home := c.Spec.Driver, c.Annotations[volume.AnnProvisionedOn]
	d, here := s.Drivers.For(name, home)
	switch {
	case d == nil:
		return nil, status.Errorf(codes.Unavailable, "driver %s does not answer this server", shown(name))
	case !here:
		return nil, status.Errorf(codes.FailedPrecondition, "the snapshot is on node %s, whose driver %s this server does "+
			"not reach", shown(home), name)
	case !d.Plugin.SnapshotMetadata:
		return nil, status.Errorf(codes.FailedPrecondition, "driver %s does not know changed blocks "+
			"(SNAPSHOT_METADATA_SERVICE)", name)
	}
	return d, nil
}

// unready returns why a snapshot cannot be read yet.
func unready(vs *snapshotv1.VolumeSnapshot) error {
	if !snapshot.IsReady(vs) || ptr.Deref(vs.Status.BoundVolumeSnapshotContentName, "") == "" {
		return status.Errorf(codes.Unavailable, "VolumeSnapshot %s/%s is not ready to use", vs.Namespace, vs.Name)
	}
	return nil
}

// unusable returns why no driver can be called for a snapshot with this content; driver is the only one that can be, or
// empty.
func unusable(vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent, driver string) error {
	content := "VolumeSnapshotContent " + c.Name
	switch view := snapshot.Single().View(c); {
	case !view.IsOf(vs):
		// A user who may write the status of a snapshot could name the content of another namespace.
		return status.Errorf(codes.FailedPrecondition, "%s is not bound to VolumeSnapshot %s/%s", content, vs.Namespace,
			vs.Name)
	case driver != "" && view.Driver != driver:
		return status.Errorf(codes.InvalidArgument, "VolumeSnapshot %s/%s belongs to driver %s, and this is the service "+
			"of %s",
			vs.Namespace, vs.Name, shown(view.Driver), driver)
	case !view.Ready || !view.Taken:
		return status.Errorf(codes.Unavailable, "%s is not ready to use", content)
	}
	return nil
}

// secretOf returns the Secret of the driver's call. A content that was created for a snapshot records the Secret that
// its class named. Only for a pre-provisioned content is the class read, or the default class.
func (s *server) secretOf(
	ctx context.Context, vs *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent,
) (*corev1.SecretReference, error) {
	recorded := snapshot.RecordedSecret(c, volume.AnnSnapshotSecretName, volume.AnnSnapshotSecretNamespace)
	if recorded != nil || c.Spec.Source.SnapshotHandle == nil {
		return recorded, nil
	}
	var class *cluster.VolumeSnapshotClass
	var err error
	if name := ptr.Deref(vs.Spec.VolumeSnapshotClassName, ""); name != "" {
		class, err = s.objects.Class(ctx, name)
	} else {
		var all []*cluster.VolumeSnapshotClass
		if all, err = s.objects.Classes(ctx); err == nil {
			// Without a class there is no Secret, and a driver that needs one reports that.
			class, _ = snapshot.DefaultClass(all, c.Spec.Driver)
		}
	}
	if err != nil {
		return nil, s.unavailable("read the class of the VolumeSnapshot", err)
	}
	if class == nil {
		return nil, nil
	}
	ref, err := snapshot.TakingSecret(class, c.Name, vs)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, shown(err.Error()))
	}
	return ref, nil
}
