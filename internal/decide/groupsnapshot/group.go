package groupsnapshot

import (
	"fmt"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Group decides about one VolumeGroupSnapshot. It is called again after each step.
func Group(f Facts) Plan {
	g := f.Group
	switch {
	case g.DeletionTimestamp != nil:
		return groupGoes(f)
	case (g.Spec.Source.Selector == nil) == (givenTo(g) == ""):
		return f.failed(volume.ReasonGroupInvalid, volume.User(),
			"group snapshot "+g.Name+" must name either a selector of claims or a content as its source")
	}
	p := f.prepare()
	switch {
	case p.Step != Nothing || p.Because.Reason != "":
		return p
	case IsReady(g) && boundTo(g) != "":
		return f.ready()
	case givenTo(g) != "":
		return f.adopt()
	}
	return f.take()
}

// prepare gives a group its class and its finalizer, which is there before its content is: whoever deletes the group
// meanwhile does not lose the content. It returns an empty plan if the group has both.
func (f Facts) prepare() Plan {
	g, next := f.Group, f.Group.DeepCopy()
	told := "group snapshot " + g.Name + " is kept while it has a content"
	if f.Content == nil && !IsReady(g) {
		class, problem := f.classOf()
		if problem.Reason != "" {
			return f.failed(problem.Reason, problem.Next, problem.Message)
		}
		if class != nil && className(g) == "" {
			next.Spec.VolumeGroupSnapshotClassName = &class.Name
			told = "group snapshot " + g.Name + " gets the default class " + class.Name
		}
	}
	if !isHeld(g) && (givenTo(g) == "" || f.Content != nil && pointsTo(f.Content, g)) {
		next.Finalizers = append(slices.Clone(g.Finalizers), volume.FinalizerGroupBound)
	}
	if len(next.Finalizers) == len(g.Finalizers) && className(next) == className(g) {
		return Plan{}
	}
	return Plan{Step: WriteGroup, Group: next, Because: volume.Say(volume.ReasonGroupPending, groupController(), told)}
}

// ready looks after a group that can be used.
func (f Facts) ready() Plan {
	g := f.Group
	switch {
	case f.Content == nil && !f.Absent:
		return Plan{Step: Confirm, Because: missing(g)}
	case f.Content == nil:
		return f.failed(volume.ReasonGroupContentMissing, volume.User(), missing(g).Message)
	case !isOf(f.Content, g):
		return f.failed(volume.ReasonGroupMisbound, volume.User(),
			"content "+f.Content.Name+" is not bound to group snapshot "+g.Name)
	}
	if len(f.Given) > 0 {
		return f.own(f.Given[0])
	}
	if b, lost := volume.LostWithNode("group snapshot "+g.Name, f.Content.Annotations); lost {
		return Plan{Warn: true, Tell: true, Because: b}
	}
	return nothing(volume.ReasonGroupReady, volume.Actor{}, "group snapshot "+g.Name+" is ready to use")
}

// own makes a group the owner of a snapshot that is a part of it, so that both go together.
func (f Facts) own(s *snapshotv1.VolumeSnapshot) Plan {
	next := s.DeepCopy()
	next.OwnerReferences = append(next.OwnerReferences, ownerOf(f.Group))
	return Plan{Step: WriteSnapshot, Was: s, Snapshot: next, Because: volume.Say(
		volume.ReasonGroupPending, groupController(),
		"snapshot "+s.Name+" becomes a member of group snapshot "+f.Group.Name)}
}

// missing is the reason of a content that is gone. No other group is taken in its place: that would have other data.
func missing(g *groupv1.VolumeGroupSnapshot) volume.Because {
	return volume.Say(volume.ReasonGroupContentMissing, volume.User(),
		"content "+ContentName(g)+" of group snapshot "+g.Name+" does not exist")
}

// adopt binds a group to a content that somebody else has made.
func (f Facts) adopt() Plan {
	g, c := f.Group, f.Content
	switch {
	case c == nil:
		return f.failed(volume.ReasonGroupContentMissing, volume.User(), missing(g).Message)
	case c.Spec.Source.GroupSnapshotHandles == nil:
		return f.failed(volume.ReasonGroupContentMismatch, volume.User(),
			"content "+c.Name+" does not name a group of a driver: it was made for another group snapshot")
	case !pointsTo(c, g):
		return f.failed(volume.ReasonGroupContentMisbound, volume.User(),
			"content "+c.Name+" is for another group snapshot than "+g.Name)
	case c.Spec.VolumeGroupSnapshotRef.UID == "" && c.DeletionTimestamp != nil:
		return f.failed(volume.ReasonGroupContentMisbound, volume.User(), "content "+c.Name+" is being deleted")
	case c.Spec.VolumeGroupSnapshotRef.UID == "":
		next := c.DeepCopy()
		next.Spec.VolumeGroupSnapshotRef.UID = g.UID
		if name := className(g); name != "" && c.Spec.VolumeGroupSnapshotClassName == nil {
			next.Spec.VolumeGroupSnapshotClassName = &name
		}
		return Plan{Step: WriteContent, Content: next, Binds: true, Because: volume.Say(
			volume.ReasonGroupPending, groupController(),
			"content "+c.Name+" is being bound to group snapshot "+g.Name)}
	}
	return f.follow()
}

// AfterBind judges the answer to the write that binds a content. A conflict is no answer: the facts were outdated.
func AfterBind(f Facts, problem string) Plan {
	return f.failed(volume.ReasonGroupBindFailed, groupController(),
		"content "+f.Content.Name+" could not be bound to group snapshot "+f.Group.Name+": "+problem)
}

// take has a group taken of claims.
func (f Facts) take() Plan {
	g, c := f.Group, f.Content
	isCreated := g.Status != nil && g.Status.CreationTime != nil
	switch {
	case c == nil && isCreated && !f.Absent:
		return Plan{Step: Confirm, Because: missing(g)}
	case c == nil && isCreated:
		return f.failed(volume.ReasonGroupContentMissing, volume.User(), missing(g).Message)
	case c == nil:
		return f.begin()
	case c.Spec.Source.GroupSnapshotHandles != nil:
		return f.failed(volume.ReasonGroupContentMismatch, volume.User(),
			"content "+c.Name+" names a group of the driver, although it should be made for group snapshot "+g.Name)
	case !isOf(c, g):
		return f.failed(volume.ReasonGroupContentMisbound, volume.User(),
			"content "+c.Name+" is for another group snapshot than "+g.Name)
	}
	return f.follow()
}

// follow makes the members of a group that its driver has taken, and copies the state of its content.
func (f Facts) follow() Plan {
	for _, m := range f.Members {
		if p := f.member(m); p.Step != Nothing || p.Because.Reason != "" {
			return p
		}
	}
	if len(f.Given) > 0 {
		return f.own(f.Given[0])
	}
	g, c := f.Group, f.Content
	why := volume.Say(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
		"group snapshot "+g.Name+" is being taken by driver "+c.Spec.Driver)
	if message := problemOf(c); message != "" {
		why = volume.Say(volume.ReasonGroupFailed, volume.AnswerIn(message).Next(volume.Driver(c.Spec.Driver)), message)
	}
	next, told := copied(g, c)
	if next == nil {
		return Plan{Because: why}
	}
	return Plan{Step: WriteStatus, Group: next, Because: why, Also: told}
}

// copied returns a group with the state of its content, and what is to be told of it; nil if it has that state.
func copied(
	g *groupv1.VolumeGroupSnapshot, c *groupv1.VolumeGroupSnapshotContent,
) (next *groupv1.VolumeGroupSnapshot, told []volume.Because) {
	next = g.DeepCopy()
	if next.Status == nil {
		next.Status = &groupv1.VolumeGroupSnapshotStatus{}
	}
	from, to := c.Status, next.Status
	if from == nil {
		from = &groupv1.VolumeGroupSnapshotContentStatus{}
	}
	isReady := ptr.Deref(from.ReadyToUse, false)
	to.BoundVolumeGroupSnapshotContentName, to.ReadyToUse = &c.Name, &isReady
	if to.CreationTime == nil && from.CreationTime != nil {
		to.CreationTime = from.CreationTime.DeepCopy()
		told = append(told, volume.Say(volume.ReasonGroupCreated, volume.Actor{},
			"GroupSnapshot "+g.Namespace+"/"+g.Name+" was successfully created by the CSI driver."))
	}
	if to.Error = from.Error.DeepCopy(); isReady {
		to.Error = nil
		told = append(told, volume.Say(volume.ReasonGroupReady, volume.Actor{},
			"GroupSnapshot "+g.Namespace+"/"+g.Name+" is ready to use."))
	}
	if equality.Semantic.DeepEqual(g.Status, to) {
		return nil, nil
	}
	return next, told
}

// failed notes an error in the status of a group, unless it is there already.
func (f Facts) failed(r volume.Reason, next volume.Actor, message string) Plan {
	g := f.Group
	p := Plan{Because: volume.Say(r, next, message), Warn: true}
	if ErrorOf(g) == message && !IsReady(g) {
		return p
	}
	p.Step, p.Tell, p.Group = WriteStatus, true, g.DeepCopy()
	if p.Group.Status == nil {
		p.Group.Status = &groupv1.VolumeGroupSnapshotStatus{}
	}
	p.Group.Status.ReadyToUse = ptr.To(false)
	p.Group.Status.Error = &snapshotv1.VolumeSnapshotError{Time: &f.Now, Message: &message}
	return p
}

// AfterRefusal judges the refusal of a write that makes the content of a group or one of its members.
func AfterRefusal(f Facts, p Plan, problem string) Plan {
	what := "group snapshot content"
	r := volume.ReasonGroupContentWrite
	if p.Step != CreateContent {
		r, what = volume.ReasonGroupMemberFailed, fmt.Sprintf("a snapshot in group snapshot %s", f.Group.Name)
	}
	return f.failed(r, groupController(), "Failed to create "+what+": "+problem)
}
