package snapshot

import (
	"cmp"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Snapshot decides about one VolumeSnapshot. It is called again after each step.
func Snapshot(f Facts) Plan {
	s := f.Snapshot
	claim, content := ClaimOf(s), ptr.Deref(s.Spec.Source.VolumeSnapshotContentName, "")
	switch {
	case s.DeletionTimestamp != nil:
		return deletion(f)
	case (claim == "") == (content == "") && !InGroup(s):
		return failed(f, volume.ReasonSnapshotInvalid, volume.User(),
			"snapshot "+s.Name+" must name either a claim or a content as its source")
	}
	p := prepare(f)
	switch {
	case p.Step != Nothing || p.Because.Reason != "":
		return p
	case IsReady(s) && boundTo(s) != "":
		return ready(f)
	case content != "":
		return adopt(f)
	}
	return take(f)
}

// prepare gives a snapshot its class and finalizers. It returns an empty plan if it has both.
func prepare(f Facts) Plan {
	s, class := f.Snapshot, f.Class
	next, told := s.DeepCopy(), "snapshot "+s.Name+" is kept while it is used"
	if f.Content == nil && !IsReady(s) {
		var problem volume.Because
		if class, problem = classOf(f); problem.Reason != "" {
			return failed(f, problem.Reason, problem.Next, problem.Message)
		}
		if class != nil && className(s) == "" {
			next.Spec.VolumeSnapshotClassName, told = &class.Name, "snapshot "+s.Name+" gets the default class "+class.Name
		}
	}
	if with(next, volume.FinalizerSnapshotAsSource); mayDelete(f, class) {
		with(next, volume.FinalizerSnapshotBound)
	}
	if len(next.Finalizers) == len(s.Finalizers) && className(next) == className(s) {
		return Plan{}
	}
	return Plan{Step: WriteSnapshot, Snapshot: next, Because: volume.Say(volume.ReasonSnapshotPending, controller(), told)}
}

// classOf returns the class that a snapshot has or gets; nil if it needs none.
func classOf(f Facts) (*cluster.VolumeSnapshotClass, volume.Because) {
	s := f.Snapshot
	switch {
	case className(s) != "" && f.Class == nil:
		return nil, volume.Say(volume.ReasonSnapshotClassFailed, volume.User(),
			"VolumeSnapshotClass "+className(s)+" of snapshot "+s.Name+" does not exist")
	case className(s) != "" || ClaimOf(s) == "" || InGroup(s):
		return f.Class, volume.Because{}
	}
	class, problem := chooseDefault(f)
	if problem != "" {
		return nil, volume.Say(volume.ReasonSnapshotDefaultFailed, volume.User(),
			"snapshot "+s.Name+" has no class: "+problem)
	}
	return class, volume.Because{}
}

// mayDelete says whether the driver's snapshot is deleted with a snapshot. The finalizer precedes the content: if a
// user deletes the snapshot in between, the content is not orphaned.
func mayDelete(f Facts, class *cluster.VolumeSnapshotClass) bool {
	if f.Content != nil {
		return viewOf(f.Content).Deletes && viewOf(f.Content).PointsTo(f.Snapshot)
	}
	return class != nil && ClaimOf(f.Snapshot) != "" && class.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
}

// ready looks after a snapshot that can be used.
func ready(f Facts) Plan {
	if f.Content == nil {
		return withoutContent(f)
	}
	return Single().Used(f.Snapshot, f.Content, f.Now)
}

func withoutContent(f Facts) Plan {
	return Single().NoContent(f.Snapshot, ContentName(f.Snapshot), f.Absent, f.Now)
}

// adopt binds a snapshot to a content that exists before it.
func adopt(f Facts) Plan {
	if f.Content == nil {
		return Single().NoContent(f.Snapshot, ContentName(f.Snapshot), true, f.Now)
	}
	if p, bound := Single().Adopt(f.Snapshot, f.Content, f.Now); !bound {
		return p
	}
	return follow(f)
}

// Refused decides about a write of a plan that the API server has refused for good; ok is false for any other write. A
// conflict is not a refusal: the facts were outdated.
func Refused(f Facts, p Plan, problem string) (then Plan, ok bool) {
	switch {
	case p.Step == CreateContent:
		return failed(f, volume.ReasonContentWriteFailed, controller(), "Failed to create snapshot content: "+problem), true
	case p.Binds:
		return Single().NotBound(f.Snapshot, f.Content, f.Now, problem), true
	}
	return then, false
}

// take begins a snapshot of a claim.
func take(f Facts) Plan {
	s, c := f.Snapshot, f.Content
	switch {
	case c == nil:
		return takeAnew(f)
	case InGroup(s) && !isOf(c, s):
		return awaitGroup(s)
	}
	if p, bound := Single().Owned(s, c, f.Now); !bound {
		return p
	}
	return follow(f)
}

// takeAnew decides about a snapshot without a content.
func takeAnew(f Facts) Plan {
	s := f.Snapshot
	switch {
	case s.Status != nil && s.Status.CreationTime != nil:
		return withoutContent(f)
	case InGroup(s):
		return awaitGroup(s)
	}
	return begin(f)
}

// awaitGroup is the plan for a member of a group: its content is created when the driver has taken the group.
func awaitGroup(s *snapshotv1.VolumeSnapshot) Plan {
	return nothing(volume.ReasonSnapshotPending, groupController(),
		"snapshot "+s.Name+" is a member of "+itsGroup(s)+", which is being taken")
}

// follow copies the state of a content to its snapshot.
func follow(f Facts) Plan {
	s, c := f.Snapshot, f.Content
	next, told := copied(s, c)
	why := volume.Say(volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
		"snapshot "+s.Name+" is being taken by driver "+c.Spec.Driver)
	if message := ErrorIn(viewOf(c).Problem); message != "" {
		why = volume.Say(volume.ReasonSnapshotFailed, volume.AnswerIn(message).Next(volume.Driver(c.Spec.Driver)), message)
	}
	if next == nil {
		return Plan{Because: why}
	}
	return Plan{Step: WriteStatus, Snapshot: next, Because: why, Also: told}
}

// copied returns a snapshot with the state of its content, and the events to record; nil if it has that state.
func copied(
	s *snapshotv1.VolumeSnapshot, c *cluster.VolumeSnapshotContent,
) (next *snapshotv1.VolumeSnapshot, told []volume.Because) {
	next = s.DeepCopy()
	next.Status = cmp.Or(next.Status, &snapshotv1.VolumeSnapshotStatus{})
	from, to := c.Status, next.Status
	from = cmp.Or(from, &snapshotv1.VolumeSnapshotContentStatus{})
	isReady := ptr.Deref(from.ReadyToUse, false)
	to.BoundVolumeSnapshotContentName, to.ReadyToUse = &c.Name, &isReady
	if to.CreationTime == nil && from.CreationTime != nil {
		to.CreationTime = &metav1.Time{Time: time.Unix(0, *from.CreationTime)}
		told = append(told, volume.Say(volume.ReasonSnapshotCreated, volume.Actor{},
			"Snapshot "+s.Namespace+"/"+s.Name+" was successfully created by the CSI driver."))
	}
	if from.RestoreSize != nil && (to.RestoreSize == nil || to.RestoreSize.IsZero()) {
		to.RestoreSize = resource.NewQuantity(*from.RestoreSize, resource.BinarySI)
	}
	if group := cluster.GroupOf(s); group != nil && from.VolumeGroupSnapshotHandle != nil {
		to.VolumeGroupSnapshotName = &group.Name
	}
	if to.Error = from.Error.DeepCopy(); isReady {
		to.Error = nil
		told = append(told, volume.Say(volume.ReasonSnapshotReady, volume.Actor{},
			"Snapshot "+s.Namespace+"/"+s.Name+" is ready to use."))
	}
	if equality.Semantic.DeepEqual(s.Status, to) {
		return nil, nil
	}
	return next, told
}

// failed records an error in a snapshot's status, unless it is there already.
func failed(f Facts, r volume.Reason, next volume.Actor, message string) Plan {
	return Single().Failed(f.Snapshot, f.Now, volume.Say(r, next, message))
}
