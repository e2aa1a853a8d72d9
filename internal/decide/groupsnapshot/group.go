package groupsnapshot

import (
	"cmp"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
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
	case p.Step != snapshot.Nothing || p.Because.Reason != "":
		return p
	case IsReady(g) && boundTo(g) != "":
		return f.ready()
	case givenTo(g) != "":
		return f.adopt()
	}
	return f.take()
}

// prepare gives a group its class and its finalizer. The finalizer precedes the content: if a user deletes the group in
// between, the content is not orphaned. It returns an empty plan if the group has both.
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
	if !isHeld(g) && (givenTo(g) == "" || f.Content != nil && viewOf(f.Content).PointsTo(g)) {
		next.Finalizers = append(slices.Clone(g.Finalizers), volume.FinalizerGroupBound)
	}
	if len(next.Finalizers) == len(g.Finalizers) && className(next) == className(g) {
		return Plan{}
	}
	return Plan{Step: snapshot.WriteSnapshot, Snapshot: next, Because: volume.Say(
		volume.ReasonGroupPending, groupController(), told)}
}

// ready looks after a group that can be used.
func (f Facts) ready() Plan {
	switch {
	case f.Content == nil:
		return f.withoutContent()
	case len(f.Given) > 0 && isOf(f.Content, f.Group):
		return f.own(f.Given[0])
	}
	return Groups().Used(f.Group, f.Content, f.Now)
}

func (f Facts) withoutContent() Plan {
	return Groups().NoContent(f.Group, ContentName(f.Group), f.Absent, f.Now)
}

// own makes a group the owner of a snapshot that is a part of it, so both are deleted together.
func (f Facts) own(s *snapshotv1.VolumeSnapshot) Plan {
	next := s.DeepCopy()
	next.OwnerReferences = append(next.OwnerReferences, ownerOf(f.Group))
	return memberPlan(MemberPlan{Step: WriteSnapshot, OldSnapshot: s, Snapshot: next},
		volume.ReasonGroupPending, groupController(), "snapshot "+s.Name+" becomes a member of group snapshot "+f.Group.Name)
}

// adopt binds a group to a content that exists before it.
func (f Facts) adopt() Plan {
	if f.Content == nil {
		return Groups().NoContent(f.Group, ContentName(f.Group), true, f.Now)
	}
	if p, bound := Groups().Adopt(f.Group, f.Content, f.Now); !bound {
		return p
	}
	return f.follow()
}

// take begins a group of snapshots of claims.
func (f Facts) take() Plan {
	g, c := f.Group, f.Content
	switch {
	case c == nil && g.Status != nil && g.Status.CreationTime != nil:
		return f.withoutContent()
	case c == nil:
		return f.begin()
	}
	if p, bound := Groups().Owned(g, c, f.Now); !bound {
		return p
	}
	return f.follow()
}

// follow creates the members of a group that its driver has taken, and copies the state of its content.
func (f Facts) follow() Plan {
	for _, m := range f.Members {
		if p := f.member(m); p.Step != snapshot.Nothing || p.Because.Reason != "" {
			return p
		}
	}
	if len(f.Given) > 0 {
		return f.own(f.Given[0])
	}
	g, c := f.Group, f.Content
	why := volume.Say(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
		"group snapshot "+g.Name+" is being taken by driver "+c.Spec.Driver)
	if message := snapshot.ErrorIn(viewOf(c).Problem); message != "" {
		why = volume.Say(volume.ReasonGroupFailed, volume.AnswerIn(message).Next(volume.Driver(c.Spec.Driver)), message)
	}
	next, told := copied(g, c)
	if next == nil {
		return Plan{Because: why}
	}
	return Plan{Step: snapshot.WriteStatus, Snapshot: next, Because: why, Also: told}
}

// copied returns a group with the state of its content, and the events to record; nil if it has that state.
func copied(
	g *groupv1.VolumeGroupSnapshot, c *groupv1.VolumeGroupSnapshotContent,
) (next *groupv1.VolumeGroupSnapshot, told []volume.Because) {
	next = g.DeepCopy()
	next.Status = cmp.Or(next.Status, &groupv1.VolumeGroupSnapshotStatus{})
	from, to := c.Status, next.Status
	from = cmp.Or(from, &groupv1.VolumeGroupSnapshotContentStatus{})
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

// failed notes an error in the status of a group, unless it has it already.
func (f Facts) failed(r volume.Reason, next volume.Actor, message string) Plan {
	return Groups().Failed(f.Group, f.Now, volume.Say(r, next, message))
}

// Refused decides about a write of a plan that the API server has refused for good; ok is false for any other write. A
// conflict is not a refusal: the facts were outdated.
func Refused(f Facts, p Plan, problem string) (then Plan, ok bool) {
	failed := func(r volume.Reason, what string) (Plan, bool) {
		return f.failed(r, groupController(), "Failed to create "+what+": "+problem), true
	}
	creates := p.Step == snapshot.WriteOther && (p.Other.Step == CreateSnapshot || p.Other.Step == CreateContent)
	switch {
	case p.Step == snapshot.CreateContent:
		return failed(volume.ReasonGroupContentWrite, "group snapshot content")
	case creates:
		return failed(volume.ReasonGroupMemberFailed, "a snapshot in group snapshot "+f.Group.Name)
	case p.Binds:
		return Groups().NotBound(f.Group, f.Content, f.Now, problem), true
	}
	return then, false
}
