package groupsnapshot

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// groupGoes decides about a group that is being deleted. Its members go first: no restore begins from a snapshot that
// is being deleted, so none is in use when the driver is asked to delete the group.
func groupGoes(f Facts) Plan {
	g := f.Group
	if !isHeld(g) && !isOf(f.Content, g) {
		return unheld(g)
	}
	for _, child := range f.Children {
		if p := inUse(g, child); p.Because.Reason != "" {
			return p
		}
	}
	for _, child := range f.Children {
		if s := child.Snapshot; s.DeletionTimestamp == nil {
			return memberPlan(MemberPlan{Step: DeleteSnapshot, Snapshot: s}, volume.ReasonTerminating, groupController(),
				"snapshot "+s.Name+" is deleted with group snapshot "+g.Name)
		}
	}
	if p := f.handOver(); p.Because.Reason != "" {
		return p
	}
	switch {
	case f.Content == nil && !f.Absent:
		return Plan{Step: snapshot.Confirm, Because: volume.Say(volume.ReasonTerminating, groupController(),
			"group snapshot "+g.Name+" is being deleted, and its content "+ContentName(g)+" is looked for")}
	case isOf(f.Content, g):
		return Groups().DeleteContent(g, f.Content, func(why string) Plan { return removeFinalizers(g, why) })
	}
	return removeFinalizers(g, "nothing needs group snapshot "+g.Name+" any more")
}

// handOver returns the plan for a member that a backup program has taken out of a group whose snapshots are retained:
// from now on its content refers to a single snapshot, which nothing else would ever delete. The plan is empty without
// such a member.
func (f Facts) handOver() Plan {
	if f.Content == nil || viewOf(f.Content).Deletes {
		return Plan{}
	}
	for _, m := range f.Members {
		s, c := m.Snapshot, m.Content
		if s == nil || c == nil || snapshot.InGroup(s) || !f.fits(m) {
			continue
		}
		if v := snapshot.Single().View(c); !v.Deletes || !v.Ready {
			continue
		}
		next, step := c.DeepCopy(), WriteStatus
		if next.Status.VolumeGroupSnapshotHandle == nil {
			step = WriteContent
			delete(next.Annotations, volume.AnnGroupSnapshotHandle)
		}
		next.Status.VolumeGroupSnapshotHandle = nil
		return memberPlan(MemberPlan{Step: step, OldContent: c, Content: next}, volume.ReasonTerminating, groupController(),
			"snapshot "+s.Name+" was taken out of group snapshot "+f.Group.Name+", and stays without it")
	}
	return Plan{}
}

// inUse returns the plan for a group that is being deleted while a claim is restored from one of its members; an empty
// plan otherwise.
func inUse(g *groupv1.VolumeGroupSnapshot, child Child) Plan {
	s := child.Snapshot
	var waiting []string
	for _, c := range child.Restores {
		if c.Status.Phase == corev1.ClaimPending {
			waiting = append(waiting, c.Name)
		}
	}
	slices.Sort(waiting)
	switch {
	case len(waiting) > 0:
		return Plan{Warn: true, Event: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" of group snapshot "+g.Name+" is used to restore claim "+strings.Join(waiting, ", ")+
				", which has no volume yet")}
	case slices.Contains(s.Finalizers, volume.FinalizerRestoring):
		return nothing(volume.ReasonSnapshotDeletePending, volume.Controller("provisioner"), "group snapshot "+g.Name+
			" is being deleted; it stays while a volume is created from its snapshot "+s.Name+" ("+volume.FinalizerRestoring+")")
	}
	return Plan{}
}

// removeFinalizers removes the finalizer of a group. A group with only another program's finalizer needs no step.
func removeFinalizers(g *groupv1.VolumeGroupSnapshot, why string) Plan {
	if !isHeld(g) {
		return unheld(g)
	}
	next := g.DeepCopy()
	next.Finalizers = volume.Without(next.Finalizers, volume.FinalizerGroupBound)
	return Plan{Step: snapshot.WriteSnapshot, Snapshot: next, Because: volume.Say(
		volume.ReasonTerminating, groupController(), why)}
}

// unheld is the plan for a group that is being deleted and has no finalizer of this controller.
func unheld(g *groupv1.VolumeGroupSnapshot) Plan {
	if len(g.Finalizers) == 0 {
		return nothing(volume.ReasonTerminating, volume.APIServer(),
			"group snapshot "+g.Name+" is being deleted, and nothing holds it")
	}
	return nothing(volume.ReasonTerminating, volume.OwnerOf(g.Finalizers[0]), "group snapshot "+g.Name+
		" is being deleted, and finalizer "+g.Finalizers[0]+" belongs to another program")
}
