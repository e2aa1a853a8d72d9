package provision

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// ErrSource says that a claim cannot get its data from its source.
var ErrSource = errors.New("data source")

// Snapshot has the facts about the snapshot to restore.
type Snapshot struct {
	// Installed says whether the custom resource is installed.
	Installed bool
	// Exists says whether the snapshot exists.
	Exists bool
	// Deleting says whether the snapshot is being deleted.
	Deleting bool
	// Ready says whether the snapshot is ready to use.
	Ready bool
	// Bound says whether the snapshot and its content name each other.
	Bound bool
	// Driver is the content's driver.
	Driver string
	// Handle is the content's snapshot handle.
	Handle string
	// Kept says where it is; its Source is empty.
	Kept Origin
	// Lost says that the snapshot was given up together with its node.
	Lost bool
	// Bytes is the size that a volume needs for the data; 0 if it is unknown.
	Bytes int64
	// Mode is the mode of the volume from which the snapshot was taken; "" if it is unknown.
	Mode corev1.PersistentVolumeMode
	// MayChangeMode says whether the administrator allows another mode.
	MayChangeMode bool
}

// SnapshotOf gathers the facts about a snapshot and the content that it names; the content is nil if there is none.
func SnapshotOf(view cluster.View, s *snapshotv1.VolumeSnapshot, content *cluster.VolumeSnapshotContent) Snapshot {
	out := Snapshot{Installed: true, Exists: true, Deleting: s.DeletionTimestamp != nil}
	if s.Status != nil {
		out.Ready = ptr.Deref(s.Status.ReadyToUse, false)
		if size := s.Status.RestoreSize; size != nil {
			out.Bytes = size.Value()
		}
	}
	if content == nil {
		return out
	}
	// The content must refer to the snapshot, too: a user could name any content in a snapshot.
	out.Bound = content.Spec.VolumeSnapshotRef.UID == s.UID
	out.Driver, out.Mode = content.Spec.Driver, ptr.Deref(content.Spec.SourceVolumeMode, "")
	if content.Status != nil {
		out.Handle = ptr.Deref(content.Status.SnapshotHandle, "")
	}
	out.Kept = keptOn(view, content)
	out.Lost = volume.IsLost(content.Annotations, out.Kept.Node)
	out.MayChangeMode = content.Annotations[volume.AnnAllowModeChange] == "true"
	return out
}

// Source has the facts about a claim's data source.
type Source struct {
	// Claim is the claim to clone, or nil.
	Claim *corev1.PersistentVolumeClaim
	// Volume is the volume of that claim, or nil.
	Volume *corev1.PersistentVolume
	// Clones says whether the driver can clone volumes.
	Clones bool
	// Restores says whether the driver can create volumes from snapshots.
	Restores bool
	// Snapshot is the snapshot to restore.
	Snapshot Snapshot
	// AnyMode says whether a restored volume may have any mode.
	AnyMode bool
	// OtherNamespaces says whether sources in other namespaces are used, and Granted that the namespace of this one lets
	// the claim have its data.
	OtherNamespaces, Granted bool
}

// IsSnapshot says whether a claim's data come from a snapshot.
func IsSnapshot(c *corev1.PersistentVolumeClaim) bool {
	return cluster.SourceOf(c).IsSnapshot()
}

// IsClone says whether a claim's data come from another claim.
func IsClone(c *corev1.PersistentVolumeClaim) bool {
	return cluster.SourceOf(c).IsClaim()
}

// isPopulated says whether a claim's data come from an object of another kind: a populator of that kind makes a volume
// with the data and hands it over by its claimRef (B-031).
//
// A populator of sources in other namespaces reads the grants itself.
func (f ClaimFacts) isPopulated() bool {
	s := cluster.SourceOf(f.Claim)
	return s.Kind != "" && s.Kind != volume.KindSnapshot && s.Kind != "PersistentVolumeClaim" &&
		(f.Claim.Spec.DataSource != nil || f.Options.OtherNamespaces)
}

// populating is the plan for a claim that a populator fills. One that is built with Kubernetes' library has a finalizer
// on the claim while it works.
func populating(c *corev1.PersistentVolumeClaim) Plan {
	s := cluster.SourceOf(c)
	kind, name := s.Kind, s.Name
	if s.Group != "" {
		kind += "." + s.Group
	}
	if s.IsElsewhere(c) {
		name = s.Key()
	}
	message := "its data come from " + s.Kind + " " + name + ", and no populator of " + kind +
		" has begun to fill a volume"
	if slices.ContainsFunc(c.Finalizers, func(f string) bool { return strings.HasSuffix(f, volume.SuffixPopulating) }) {
		message = "a populator of " + kind + " fills a volume from " + s.Kind + " " + name
	}
	p := because(Nothing, volume.ReasonProvisioning, volume.Populator(kind), message)
	p.Event = true
	return p
}

// into completes the intent with the source of the data. An unusable source is an error: an empty
// volume would look like lost data.
func (s Source) into(in *Intent, c *corev1.PersistentVolumeClaim) (err error) {
	from, ref := cluster.SourceOf(c), c.Spec.DataSourceRef
	switch {
	case ref != nil && !s.OtherNamespaces && (c.Spec.DataSource == nil || ptr.Deref(ref.Namespace, "") != ""):
		return fmt.Errorf("%w %s %s is in another namespace, which is not supported", ErrSource, ref.Kind, ref.Name)
	case from.IsElsewhere(c) && !s.Granted:
		return fmt.Errorf("%w %s", ErrSource, refused(c.Namespace, from))
	case from == cluster.DataSource{}:
		return nil
	case from.IsSnapshot():
		in.Snapshot, err = s.restore(c, from.Key(), in.Driver)
	case from.IsClaim():
		in.Source, err = s.clone(c, from.Key(), in.Driver)
	default:
		return fmt.Errorf("%w %s %s: this provisioner does not fill volumes from a %s", ErrSource, from.Kind, from.Name,
			from.Kind)
	}
	if in.SourceName = from.Name; from.IsElsewhere(c) {
		in.SourceNamespace = from.Namespace
	}
	return err
}

// restore returns the handle of the snapshot.
func (s Source) restore(c *corev1.PersistentVolumeClaim, name, driver string) (string, error) {
	shot := s.Snapshot
	shot.MayChangeMode = shot.MayChangeMode || s.AnyMode
	var problem string
	switch {
	case !s.Restores:
		problem = fmt.Sprintf("driver %s cannot restore it: it does not have the capability CREATE_DELETE_SNAPSHOT", driver)
	case !shot.Installed:
		problem = fmt.Sprintf("it cannot exist, because the custom resource %s.%s is not installed", volume.ResourceSnapshots,
			volume.GroupSnapshot)
	case !shot.Exists:
		problem = "it does not exist"
	case shot.Deleting:
		problem = "it is being deleted"
	case !shot.Ready:
		problem = "it is not ready to use yet"
	default:
		problem = shot.mismatch(c, driver)
	}
	if problem != "" {
		return "", fmt.Errorf("%w: snapshot %s: %s", ErrSource, name, problem)
	}
	return shot.Handle, nil
}

// mismatch returns why the claim cannot have the data of the snapshot, or "".
func (shot Snapshot) mismatch(c *corev1.PersistentVolumeClaim, driver string) string {
	request, wanted := c.Spec.Resources.Requests.Storage(), corev1.PersistentVolumeFilesystem
	if cluster.IsBlock(c.Spec.VolumeMode) {
		wanted = corev1.PersistentVolumeBlock
	}
	switch {
	case !shot.Bound:
		return "it and its content do not name each other"
	case shot.Driver != driver:
		return fmt.Sprintf("it belongs to driver %s, not to %s", shot.Driver, driver)
	case shot.Handle == "":
		return "its content does not name a snapshot of the driver"
	case request.Value() < shot.Bytes:
		return fmt.Sprintf("its data need %d bytes, the claim requests %d", shot.Bytes, request.Value())
	case shot.Mode != "" && shot.Mode != wanted && !shot.MayChangeMode:
		return fmt.Sprintf("it was taken from a volume in mode %s, the claim requests %s, and its content does not allow "+
			"that by annotation %s", shot.Mode, wanted, volume.AnnAllowModeChange)
	}
	return ""
}

func (s Source) clone(c *corev1.PersistentVolumeClaim, name, driver string) (string, error) {
	switch {
	case !s.Clones:
		return "", fmt.Errorf("%w: driver %s cannot copy claim %s: it does not have the capability CLONE_VOLUME",
			ErrSource, driver, name)
	case s.Claim == nil:
		return "", fmt.Errorf("%w: claim %s does not exist", ErrSource, name)
	case s.Claim.DeletionTimestamp != nil:
		return "", fmt.Errorf("%w: claim %s is being deleted", ErrSource, name)
	case s.Claim.Status.Phase != corev1.ClaimBound, s.Volume == nil, !Owns(s.Claim.UID, s.Volume):
		return "", fmt.Errorf("%w: claim %s is not bound to a volume", ErrSource, name)
	case s.Volume.Spec.CSI == nil || s.Volume.Spec.CSI.Driver != driver:
		return "", fmt.Errorf("%w: the volume of claim %s does not belong to driver %s", ErrSource, name, driver)
	case c.Spec.Resources.Requests.Storage().Cmp(*s.Claim.Spec.Resources.Requests.Storage()) < 0:
		return "", fmt.Errorf("%w: claim %s asks for more than its copy", ErrSource, name)
	case cluster.IsBlock(c.Spec.VolumeMode) != cluster.IsBlock(s.Volume.Spec.VolumeMode):
		return "", fmt.Errorf("%w: the volume of claim %s has a different volume mode", ErrSource, name)
	}
	return s.Volume.Spec.CSI.VolumeHandle, nil
}

// Owns says whether a volume belongs to a claim. It checks the volume's reference, because a claim
// can name any volume (CVE-2019-11255).
func Owns(claim types.UID, v *corev1.PersistentVolume) bool {
	return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == claim
}

// Grants says whether a ReferenceGrant lets the claims of a namespace have the data of a source. One that is being
// deleted does not: its owner has withdrawn it.
func Grants(g *cluster.ReferenceGrant, namespace string, source cluster.DataSource) bool {
	return g.Namespace == source.Namespace && g.DeletionTimestamp == nil &&
		slices.Contains(g.Spec.From, cluster.ReferenceGrantFrom{Kind: "PersistentVolumeClaim", Namespace: namespace}) &&
		slices.ContainsFunc(g.Spec.To, func(to cluster.ReferenceGrantTo) bool {
			return to.Group == source.Group && to.Kind == source.Kind && (to.Name == "" || to.Name == source.Name)
		})
}

// refused says that no grant lets the claims of a namespace have the data of a source. It does not show the owner of
// the claim whether the source exists.
func refused(namespace string, source cluster.DataSource) string {
	return source.Kind + " " + source.Key() + ": no ReferenceGrant of namespace " + source.Namespace +
		" lets claims of namespace " + namespace + " use it"
}

// From returns the object that the data of an intent's volume come from.
func (in *Intent) From() cluster.DataSource {
	s := cluster.DataSource{Namespace: in.Claim.Namespace, Name: in.SourceName}
	if in.SourceNamespace != "" {
		s.Namespace = in.SourceNamespace
	}
	switch {
	case in.Source != "":
		s.Kind = "PersistentVolumeClaim"
	case in.Snapshot != "":
		s.Group, s.Kind = volume.GroupSnapshot, volume.KindSnapshot
	default:
		return cluster.DataSource{}
	}
	return s
}
