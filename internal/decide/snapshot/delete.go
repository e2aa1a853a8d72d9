package snapshot

import (
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// deletion decides about a snapshot that is being deleted.
func deletion(f Facts) Plan {
	s, names := f.Snapshot, waiting(f.Restores)
	switch {
	case !has(s, volume.FinalizerSnapshotAsSource) && !has(s, volume.FinalizerSnapshotBound):
		return gone(s)
	case len(names) > 0 && isOf(f.Content, s):
		// Without its content nobody can restore it, and the claims wait for another snapshot of its name.
		return Plan{Warn: true, Tell: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" is used to restore claim "+strings.Join(names, ", ")+", which has no volume yet")}
	case has(s, volume.FinalizerRestoring):
		// The claim may be gone already, and its volume be made nevertheless.
		return nothing(volume.ReasonSnapshotDeletePending, volume.Controller("provisioner"), restoring(s))
	case has(s, volume.FinalizerSnapshotInGroup):
		// The group-snapshot-controller knows whether the group is being deleted, too, and tells the user.
		return Plan{Warn: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" is being deleted; it stays until "+itsGroup(s)+" is deleted")}
	case f.Content == nil && !f.Absent:
		return Plan{Step: Confirm, Because: volume.Say(volume.ReasonTerminating, controller(),
			"snapshot "+s.Name+" is being deleted, and its content "+ContentName(s)+" is looked for")}
	case isOf(f.Content, s):
		return letContentGo(s, f.Content)
	}
	return letGo(s, "nothing needs snapshot "+s.Name+" any more")
}

// letContentGo decides about a snapshot that is being deleted and has a content.
func letContentGo(s *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent) Plan {
	switch {
	case c.Annotations[volume.AnnSnapshotDeleting] != yes:
		return Plan{Step: WriteContent, Content: Noted(c, volume.AnnSnapshotDeleting, yes), Because: volume.Say(
			volume.ReasonTerminating, controller(),
			"content "+c.Name+" is to go with snapshot "+s.Name)}
	case !deletes(c):
		return letGo(s, "content "+c.Name+" is retained without snapshot "+s.Name)
	case c.DeletionTimestamp == nil:
		return Plan{Step: DeleteContent, Content: c, Because: volume.Say(
			volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is deleted with snapshot "+s.Name)}
	}
	b := volume.Say(volume.ReasonTerminating, volume.Driver(c.Spec.Driver), "snapshot "+s.Name+" is being deleted; it "+
		"stays until driver "+c.Spec.Driver+" has deleted what content "+c.Name+" stands for")
	if cause := problemOf(c); cause != "" {
		b.Message += ": " + cause
		b.Next = volume.AnswerIn(cause).Next(volume.Driver(c.Spec.Driver))
	}
	return Plan{Because: b}
}

// letGo takes the finalizers from a snapshot.
func letGo(s *snapshotv1.VolumeSnapshot, why string) Plan {
	next := s.DeepCopy()
	without(next, volume.FinalizerSnapshotAsSource, volume.FinalizerSnapshotBound)
	return Plan{Step: WriteSnapshot, Snapshot: next, Because: volume.Say(volume.ReasonTerminating, controller(), why)}
}

// gone is the plan for a snapshot that is being deleted and has no finalizer of the snapshot controller.
func gone(s *snapshotv1.VolumeSnapshot) Plan {
	switch {
	case len(s.Finalizers) == 0:
		return nothing(volume.ReasonTerminating, volume.APIServer(),
			"snapshot "+s.Name+" is being deleted, and nothing holds it")
	case has(s, volume.FinalizerRestoring):
		return nothing(volume.ReasonSnapshotDeletePending, volume.Controller("provisioner"), restoring(s))
	}
	return nothing(volume.ReasonTerminating, volume.OwnerOf(s.Finalizers[0]),
		"snapshot "+s.Name+" is being deleted, and finalizer "+s.Finalizers[0]+" is held by somebody else")
}

func restoring(s *snapshotv1.VolumeSnapshot) string {
	return "snapshot " + s.Name + " is being deleted; it stays while a volume is made from it (" +
		volume.FinalizerRestoring + ")"
}

// waiting returns the names of the claims that wait to be restored, in order.
func waiting(restores []*corev1.PersistentVolumeClaim) []string {
	var names []string
	for _, c := range restores {
		if provision.IsSnapshot(c) && c.Status.Phase == corev1.ClaimPending {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Claim decides about a claim that snapshots are taken of: it loses its finalizer when each of these snapshots is
// taken or gone.
func Claim(c *corev1.PersistentVolumeClaim, snapshots []*snapshotv1.VolumeSnapshot) Plan {
	if !has(c, volume.FinalizerSnapshotSource) {
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" is not kept for snapshots")
	}
	for _, s := range snapshots {
		if ClaimOf(s) == c.Name && s.Namespace == c.Namespace && !IsReady(s) {
			return nothing(volume.ReasonSnapshotPending, controller(),
				"claim "+c.Name+" is kept while snapshot "+s.Name+" of it is not ready")
		}
	}
	next := c.DeepCopy()
	without(next, volume.FinalizerSnapshotSource)
	return Plan{Step: WriteClaim, Claim: next, Because: volume.Say(volume.ReasonSnapshotReady, volume.Actor{},
		"no snapshot is being taken of claim "+c.Name+" any more")}
}

// ContentFacts is everything on which the common decision about one VolumeSnapshotContent depends.
type ContentFacts struct {
	Content *snapshotv1.VolumeSnapshotContent
	// Snapshot has the name that the content refers to; nil if there is none. Absent says that the API server itself has
	// said so.
	Snapshot *snapshotv1.VolumeSnapshot
	Absent   bool
}

// Content decides what a content gets that is no matter of its driver. A snapshot that is missing is no reason to
// delete anything: it may not have been restored from a backup yet.
func Content(f ContentFacts) Plan {
	c, ref := f.Content, f.Content.Spec.VolumeSnapshotRef
	switch {
	case !isValid(c):
		return Plan{Warn: true, Tell: true, Because: volume.Say(volume.ReasonContentInvalid, volume.User(), invalid(c))}
	case ref.UID == "":
		return nothing(volume.ReasonNothingToDo, volume.User(), "content "+c.Name+" is for snapshot "+ref.Name+
			", which has not been bound to it yet")
	case c.DeletionTimestamp != nil:
		return contentGoes(f)
	case !has(c, volume.FinalizerContentBound):
		next := c.DeepCopy()
		with(next, volume.FinalizerContentBound)
		return Plan{Step: WriteContent, Content: next, Because: volume.Say(
			volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is kept for snapshot "+ref.Name)}
	}
	return nothing(volume.ReasonNothingToDo, volume.Actor{}, "content "+c.Name+" is kept as it should be")
}

// contentGoes decides about a bound content that is being deleted.
func contentGoes(f ContentFacts) Plan {
	c := f.Content
	switch {
	case !has(c, volume.FinalizerContentBound) || c.Annotations[volume.AnnSnapshotDeleting] == yes:
		return nothing(volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is being deleted by its driver")
	case f.Snapshot != nil && f.Snapshot.UID == c.Spec.VolumeSnapshotRef.UID:
		return nothing(volume.ReasonTerminating, volume.User(),
			"content "+c.Name+" is being deleted; it stays until snapshot "+f.Snapshot.Name+" is deleted")
	case f.Snapshot == nil && !f.Absent:
		return Plan{Step: Confirm, Because: orphaned(c)}
	}
	// An administrator deletes a content whose snapshot is gone.
	return Plan{Step: WriteContent, Content: Noted(c, volume.AnnSnapshotDeleting, yes), Because: orphaned(c)}
}

func orphaned(c *snapshotv1.VolumeSnapshotContent) volume.Because {
	return volume.Say(volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
		"content "+c.Name+" is being deleted, and snapshot "+c.Spec.VolumeSnapshotRef.Name+" is gone")
}
