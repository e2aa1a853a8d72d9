package groupsnapshot

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// groupGoes decides about a group that is being deleted. Its members go first: nobody begins to restore from a snapshot
// that is being deleted, so that none is in use when the driver is asked to delete the group.
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
			return Plan{Step: DeleteSnapshot, Snapshot: s, Because: volume.Say(volume.ReasonTerminating, groupController(),
				"snapshot "+s.Name+" is deleted with group snapshot "+g.Name)}
		}
	}
	switch {
	case f.Content == nil && !f.Absent:
		return Plan{Step: Confirm, Because: volume.Say(volume.ReasonTerminating, groupController(),
			"group snapshot "+g.Name+" is being deleted, and its content "+ContentName(g)+" is looked for")}
	case isOf(f.Content, g):
		return letContentGo(g, f.Content)
	}
	return letGo(g, "nothing needs group snapshot "+g.Name+" any more")
}

// inUse returns the plan for a group that is being deleted while somebody restores from one of its members; an empty
// one if nobody does.
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
		return Plan{Warn: true, Tell: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"snapshot "+s.Name+" of group snapshot "+g.Name+" is used to restore claim "+strings.Join(waiting, ", ")+
				", which has no volume yet")}
	case slices.Contains(s.Finalizers, volume.FinalizerRestoring):
		return nothing(volume.ReasonSnapshotDeletePending, volume.Controller("provisioner"), "group snapshot "+g.Name+
			" is being deleted; it stays while a volume is made from its snapshot "+s.Name+" ("+volume.FinalizerRestoring+")")
	}
	return Plan{}
}

// letContentGo decides about a group that is being deleted and has a content.
func letContentGo(g *groupv1.VolumeGroupSnapshot, c *groupv1.VolumeGroupSnapshotContent) Plan {
	switch {
	case c.Annotations[volume.AnnGroupDeleting] != yes:
		return Plan{
			Step: WriteContent, Content: snapshot.Noted(c, volume.AnnGroupDeleting, yes), Because: volume.Say(
				volume.ReasonTerminating, groupController(),
				"content "+c.Name+" is to go with group snapshot "+g.Name),
		}
	case !deletes(c):
		return letGo(g, "content "+c.Name+" is retained without group snapshot "+g.Name)
	case c.DeletionTimestamp == nil:
		return Plan{Step: DeleteContent, Content: c, Because: volume.Say(
			volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is deleted with group snapshot "+g.Name)}
	}
	b := volume.Say(volume.ReasonTerminating, volume.Driver(c.Spec.Driver), "group snapshot "+g.Name+
		" is being deleted; it stays until driver "+c.Spec.Driver+" has deleted what content "+c.Name+" stands for")
	if cause := problemOf(c); cause != "" {
		b.Message += ": " + cause
		b.Next = volume.AnswerIn(cause).Next(volume.Driver(c.Spec.Driver))
	}
	return Plan{Because: b}
}

// letGo takes the finalizer from a group. One that has only somebody else's rests.
func letGo(g *groupv1.VolumeGroupSnapshot, why string) Plan {
	if !isHeld(g) {
		return unheld(g)
	}
	next := g.DeepCopy()
	next.Finalizers = volume.Without(next.Finalizers, volume.FinalizerGroupBound)
	return Plan{Step: WriteGroup, Group: next, Because: volume.Say(volume.ReasonTerminating, groupController(), why)}
}

// unheld is the plan for a group that is being deleted and has no finalizer of this controller.
func unheld(g *groupv1.VolumeGroupSnapshot) Plan {
	if len(g.Finalizers) == 0 {
		return nothing(volume.ReasonTerminating, volume.APIServer(),
			"group snapshot "+g.Name+" is being deleted, and nothing holds it")
	}
	return nothing(volume.ReasonTerminating, volume.OwnerOf(g.Finalizers[0]), "group snapshot "+g.Name+
		" is being deleted, and finalizer "+g.Finalizers[0]+" is held by somebody else")
}

// ContentFacts is everything on which the common decision about one VolumeGroupSnapshotContent depends.
type ContentFacts struct {
	Content *groupv1.VolumeGroupSnapshotContent
	// Group has the name that the content refers to; nil if there is none. Absent says that the API server itself has
	// said so.
	Group  *groupv1.VolumeGroupSnapshot
	Absent bool
}

// Content decides what a content gets that is no matter of its driver. A group that is missing is no reason to delete
// anything: it may not have been restored from a backup yet.
func Content(f ContentFacts) Plan {
	c, ref := f.Content, f.Content.Spec.VolumeGroupSnapshotRef
	switch {
	case !isValid(c):
		return Plan{Warn: true, Tell: true, Because: volume.Say(volume.ReasonGroupContentInvalid, volume.User(), invalid(c))}
	case ref.UID == "":
		return nothing(volume.ReasonNothingToDo, volume.User(), "content "+c.Name+" is for group snapshot "+ref.Name+
			", which has not been bound to it yet")
	case c.DeletionTimestamp != nil:
		return contentGoes(f)
	case !isKept(c):
		next := c.DeepCopy()
		next.Finalizers = append(slices.Clone(c.Finalizers), volume.FinalizerGroupContentBound)
		return Plan{Step: WriteContent, Content: next, Because: volume.Say(
			volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is kept for group snapshot "+ref.Name)}
	}
	return nothing(volume.ReasonNothingToDo, volume.Actor{}, "content "+c.Name+" is kept as it should be")
}

// contentGoes decides about a bound content that is being deleted.
func contentGoes(f ContentFacts) Plan {
	c, ref := f.Content, f.Content.Spec.VolumeGroupSnapshotRef
	orphaned := volume.Say(volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
		"content "+c.Name+" is being deleted, and group snapshot "+ref.Name+" is gone")
	switch {
	case !isKept(c) || c.Annotations[volume.AnnGroupDeleting] == yes:
		return nothing(volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" is being deleted by its driver")
	case f.Group != nil && f.Group.UID == ref.UID:
		return nothing(volume.ReasonTerminating, volume.User(),
			"content "+c.Name+" is being deleted; it stays until group snapshot "+f.Group.Name+" is deleted")
	case f.Group == nil && !f.Absent:
		return Plan{Step: Confirm, Because: orphaned}
	}
	// An administrator deletes a content whose group is gone.
	return Plan{Step: WriteContent, Content: snapshot.Noted(c, volume.AnnGroupDeleting, yes), Because: orphaned}
}
