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
		// Without its content it cannot be restored, and the claims wait for another snapshot of its name.
		return Plan{Warn: true, Event: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" is used to restore claim "+strings.Join(names, ", ")+", which has no volume yet")}
	case has(s, volume.FinalizerRestoring):
		// The claim may be gone already, while its volume is still being created.
		return nothing(volume.ReasonSnapshotDeletePending, volume.Controller("provisioner"), restoring(s))
	case has(s, volume.FinalizerSnapshotInGroup):
		// The group-snapshot-controller also knows whether the group is being deleted, and notifies the user.
		return Plan{Warn: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" is being deleted; it stays until "+itsGroup(s)+" is deleted")}
	case f.Content == nil && !f.Absent:
		return Plan{Step: Confirm, Because: volume.Say(volume.ReasonTerminating, controller(),
			"snapshot "+s.Name+" is being deleted, and its content "+ContentName(s)+" is looked for")}
	case isOf(f.Content, s):
		return Single().DeleteContent(s, f.Content, func(why string) Plan { return removeFinalizers(s, why) })
	}
	return removeFinalizers(s, "nothing needs snapshot "+s.Name+" any more")
}

// removeFinalizers removes the finalizers of a snapshot.
func removeFinalizers(s *snapshotv1.VolumeSnapshot, why string) Plan {
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
		"snapshot "+s.Name+" is being deleted, and finalizer "+s.Finalizers[0]+" belongs to another program")
}

func restoring(s *snapshotv1.VolumeSnapshot) string {
	return "snapshot " + s.Name + " is being deleted; it stays while a volume is created from it (" +
		volume.FinalizerRestoring + ")"
}

// waiting returns the names of the claims that wait for their restore, in order.
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

// Claim decides about the source claim of snapshots: it loses its finalizer when each of these snapshots is taken or
// gone.
func Claim(c *corev1.PersistentVolumeClaim, snapshots []*snapshotv1.VolumeSnapshot) Plan {
	if !has(c, volume.FinalizerSnapshotSource) {
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" is not kept for snapshots")
	}
	for _, s := range snapshots {
		if ClaimOf(s) == c.Name && s.Namespace == c.Namespace && !IsReady(s) {
			return keeps(c, s)
		}
	}
	next := c.DeepCopy()
	without(next, volume.FinalizerSnapshotSource)
	return Plan{Step: WriteOther, Other: next, Because: volume.Say(volume.ReasonSnapshotReady, controller(),
		"no snapshot is being taken of claim "+c.Name+" any more")}
}

// keeps is the plan for a claim that is kept for a snapshot. If a driver was not asked for the snapshot, as without a
// class, only the user can fix that, or delete the snapshot.
func keeps(c *corev1.PersistentVolumeClaim, s *snapshotv1.VolumeSnapshot) Plan {
	cause, next := ErrorOf(s), controller()
	if cause == "" {
		return nothing(volume.ReasonSnapshotPending, next,
			"claim "+c.Name+" is kept while snapshot "+s.Name+" of it is not ready")
	}
	if next = volume.AnswerIn(cause).Next(next); boundTo(s) == "" {
		next = volume.User()
	}
	return nothing(volume.ReasonSnapshotPending, next,
		"claim "+c.Name+" is kept until snapshot "+s.Name+" of it is ready or deleted: "+cause)
}
