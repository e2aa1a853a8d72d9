package provision

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// ErrSource says that a claim cannot get its data from its source.
var ErrSource = errors.New("data source")

// Snapshot is what the API server says of a snapshot.
type Snapshot int

// States of a snapshot. The zero value is that of an API server that knows no
// snapshots.
const (
	SnapshotsNotInstalled Snapshot = iota
	SnapshotMissing
	SnapshotNotReady
	SnapshotReady
)

// Source is what is there of the object that a claim names as its data source.
type Source struct {
	// Claim is the one to clone, Volume the volume object that it names; nil
	// when there is none.
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Clones says that the driver can copy volumes.
	Clones bool
	// Snapshot is the state of the snapshot to restore.
	Snapshot Snapshot
}

// IsSnapshot says whether a claim's data come from a snapshot.
func IsSnapshot(c *corev1.PersistentVolumeClaim) bool {
	s := c.Spec.DataSource
	return s != nil && s.Kind == volume.KindSnapshot && s.APIGroup != nil && *s.APIGroup == volume.GroupSnapshot
}

// IsClone says whether a claim's data come from another claim.
func IsClone(c *corev1.PersistentVolumeClaim) bool {
	s := c.Spec.DataSource
	return s != nil && s.Kind == "PersistentVolumeClaim" && (s.APIGroup == nil || *s.APIGroup == "")
}

// handle returns the driver's id of the volume that a claim clones; "" for a
// claim that begins empty. A source that cannot be used is an error: an empty
// volume in its place would look like lost data.
func (s Source) handle(c *corev1.PersistentVolumeClaim, driver string) (string, error) {
	source := c.Spec.DataSource
	switch {
	case source == nil && c.Spec.DataSourceRef != nil:
		return "", fmt.Errorf("%w %s %s is in another namespace, which is not supported", ErrSource, c.Spec.DataSourceRef.Kind, c.Spec.DataSourceRef.Name)
	case source == nil:
		return "", nil
	case IsSnapshot(c):
		return "", s.snapshotProblem(c.Namespace + "/" + source.Name)
	case IsClone(c):
		return s.clone(c, c.Namespace+"/"+source.Name, driver)
	}
	return "", fmt.Errorf("%w %s %s: this provisioner does not fill volumes from a %s", ErrSource, source.Kind, source.Name, source.Kind)
}

func (s Source) snapshotProblem(name string) error {
	switch s.Snapshot {
	case SnapshotMissing:
		return fmt.Errorf("%w: snapshot %s does not exist", ErrSource, name)
	case SnapshotNotReady:
		return fmt.Errorf("%w: snapshot %s is not ready to use yet", ErrSource, name)
	case SnapshotReady:
		return fmt.Errorf("%w: snapshot %s is ready, but this provisioner does not restore snapshots", ErrSource, name)
	case SnapshotsNotInstalled:
	}
	return fmt.Errorf("%w: snapshot %s cannot exist, because the custom resource %s.%s is not installed", ErrSource, name, volume.ResourceSnapshots, volume.GroupSnapshot)
}

func (s Source) clone(c *corev1.PersistentVolumeClaim, name, driver string) (string, error) {
	switch {
	case !s.Clones:
		return "", fmt.Errorf("%w: driver %s cannot copy claim %s: it does not have the capability CLONE_VOLUME", ErrSource, driver, name)
	case s.Claim == nil:
		return "", fmt.Errorf("%w: claim %s does not exist", ErrSource, name)
	case s.Claim.DeletionTimestamp != nil:
		return "", fmt.Errorf("%w: claim %s is being deleted", ErrSource, name)
	case s.Claim.Status.Phase != corev1.ClaimBound, s.Volume == nil, !Owns(s.Claim, s.Volume):
		return "", fmt.Errorf("%w: claim %s is not bound to a volume", ErrSource, name)
	case s.Volume.Spec.CSI == nil || s.Volume.Spec.CSI.Driver != driver:
		return "", fmt.Errorf("%w: the volume of claim %s is not one of driver %s", ErrSource, name, driver)
	case c.Spec.Resources.Requests.Storage().Cmp(*s.Claim.Spec.Resources.Requests.Storage()) < 0:
		return "", fmt.Errorf("%w: claim %s asks for more than its copy", ErrSource, name)
	case isBlock(c.Spec.VolumeMode) != isBlock(s.Volume.Spec.VolumeMode):
		return "", fmt.Errorf("%w: the volume of claim %s has another volume mode", ErrSource, name)
	}
	return s.Volume.Spec.CSI.VolumeHandle, nil
}

func isBlock(m *corev1.PersistentVolumeMode) bool {
	return m != nil && *m == corev1.PersistentVolumeBlock
}

// Owns looks at the reference of the volume: a claim alone proves nothing about
// whose volume it names (CVE-2019-11255).
func Owns(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == c.UID
}
