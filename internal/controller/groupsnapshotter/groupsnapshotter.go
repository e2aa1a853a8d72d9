package groupsnapshotter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindContent = "groupcontent"
	// places is the number of calls about groups that may be in flight at each driver.
	places = 10
	// maxSteps is more than the steps that a content can need at once. One that needs more is looked at again.
	maxSteps = 10
	// firstPoll is the pause after the first answer that a group is not ready; it doubles up to maxPoll.
	firstPoll, maxPoll = time.Second, time.Minute
)

var (
	// errSteps says that a content had more to do than expected.
	errSteps = errors.New("more steps than expected; it is looked at again")
	// errCall says that a call of a driver has failed.
	errCall = errors.New("a call is made again")
)

// Declaration is what the group-snapshotter reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "group-snapshotter",
		Inputs: append(kube.Read(volume.GroupGroupSnapshot, volume.ResourceGroupContents, volume.ResourceGroupClasses),
			kube.Read(volume.GroupSnapshot, volume.ResourceSnapshotContents)...),
		Outputs: []kube.Access{
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents, "patch").
				Only(kube.Annotation(volume.AnnGroupCreating), kube.Annotation(volume.AnnSnapshotParameters),
					kube.Finalizer(volume.FinalizerGroupContentBound)),
			kube.Write(volume.GroupGroupSnapshot, volume.ResourceGroupContents+"/status", "patch").Only("status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type snapshotter struct {
	controller.Env
	*controller.Controller
	drivers  *csi.Set
	contents kube.Writer[*groupv1.VolumeGroupSnapshotContent]
	classes  *kube.Cache[*groupv1.VolumeGroupSnapshotClass]
	// snapshots are the contents of single snapshots, of which some may stand for a snapshot in a group.
	snapshots *kube.Cache[*snapshotv1.VolumeSnapshotContent]

	mu sync.Mutex
	// known holds, by content, what the last calls have said and what is not written to the API.
	known map[types.UID]knowledge
}

// knowledge is what calls have said about a content.
type knowledge struct {
	// refused says that the driver has certainly not taken the group, and removed that it has deleted it.
	refused, removed bool
	// polls counts the answers that the group is not ready.
	polls int
}

// New returns the group-snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	s := &snapshotter{
		Env: env, drivers: drivers, known: map[types.UID]knowledge{},
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: 5, Places: places, RetryMin: 100 * time.Millisecond, Log: env.Log,
		},
		contents: env.Caches.WriteGroupContents(env.Client), classes: env.Caches.GroupClasses(),
		snapshots: env.Caches.SnapshotContents(),
	}
	s.Controller.Reconcile = s.reconcile
	s.contents.Watch(func(before, after *groupv1.VolumeGroupSnapshotContent) {
		if after == nil {
			s.learn(before.UID, func(k *knowledge) { *k = knowledge{} })
		} else if concerns(before, after) {
			s.enqueue(after)
		}
	})
	s.classes.Watch(func(_, class *groupv1.VolumeGroupSnapshotClass) {
		if class != nil {
			s.enqueueAll(class.Driver)
		}
	})
	drivers.Subscribe(s.enqueueAll)
	return s.Controller
}

// concerns says whether a change of a content is one that its driver is to be asked for, and not one that this
// controller makes itself: that would defeat its back-off.
func concerns(before, after *groupv1.VolumeGroupSnapshotContent) bool {
	if before == nil || before.UID != after.UID {
		return true
	}
	for _, key := range []string{
		volume.AnnGroupDeleting, volume.AnnGroupSecretName, volume.AnnGroupSecretNamespace, volume.AnnProvisionedOn,
	} {
		if before.Annotations[key] != after.Annotations[key] {
			return true
		}
	}
	was, is := before.Spec, after.Spec
	return (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		was.VolumeGroupSnapshotRef.UID != is.VolumeGroupSnapshotRef.UID || was.DeletionPolicy != is.DeletionPolicy ||
		!ptr.Equal(was.VolumeGroupSnapshotClassName, is.VolumeGroupSnapshotClassName)
}

func (s *snapshotter) enqueue(c *groupv1.VolumeGroupSnapshotContent) {
	s.Add(controller.Key{Kind: kindContent, Name: c.Name})
}

func (s *snapshotter) enqueueAll(driver string) {
	for _, c := range s.contents.By(cluster.ContentsByDriver, driver) {
		s.enqueue(c)
	}
}

// learn changes what is known of a content.
func (s *snapshotter) learn(uid types.UID, change func(*knowledge)) (before knowledge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.known[uid]
	after := before
	if change(&after); after == (knowledge{}) {
		delete(s.known, uid)
	} else {
		s.known[uid] = after
	}
	return before
}

func (s *snapshotter) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	for range maxSteps {
		c, ok := s.contents.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		f := s.gather(c)
		plan := groupsnapshot.Driver(f)
		if calls(plan) {
			lane := controller.Lane{
				Driver: c.Spec.Driver, Call: "groupsnapshot", Namespace: c.Spec.VolumeGroupSnapshotRef.Namespace,
			}
			if pause := s.Enter(key, lane, func(b volume.Because) { s.Events.Warn(c, b) }); pause > 0 {
				return controller.Result{After: pause}, nil
			}
		}
		if plan.Step == groupsnapshot.Rest {
			s.tell(c, plan)
			return controller.Result{}, nil
		}
		result, goOn, err := s.apply(ctx, f, plan)
		if err != nil || !goOn {
			return result, kube.IgnoreNotFound(err)
		}
	}
	return controller.Result{}, fmt.Errorf("%s: %w", key, errSteps)
}

// calls says whether a plan calls the driver.
func calls(p groupsnapshot.DriverPlan) bool {
	switch p.Step {
	case groupsnapshot.Record, groupsnapshot.Take, groupsnapshot.Get, groupsnapshot.Remove:
		return true
	}
	return false
}

func (s *snapshotter) gather(c *groupv1.VolumeGroupSnapshotContent) groupsnapshot.DriverFacts {
	f := groupsnapshot.DriverFacts{Content: c, Now: metav1.Now()}
	if name := c.Spec.VolumeGroupSnapshotClassName; name != nil {
		f.Class, _ = s.classes.Get(*name)
	}
	if d, ok := s.drivers.For(c.Spec.Driver, groupsnapshot.Home(c)); ok {
		f.Ours, f.Takes = true, d.Group.Snapshot
	}
	if c.DeletionTimestamp != nil {
		f.Others = s.others(c, groupsnapshot.HandleOf(c), groupsnapshot.MembersOf(c))
	}
	k := s.learn(c.UID, func(*knowledge) {})
	f.Refused, f.Removed = k.refused, k.removed
	return f
}

// others returns the names of other contents that stand for a group of a content's driver, or for a snapshot in it.
func (s *snapshotter) others(c *groupv1.VolumeGroupSnapshotContent, handle string, members []string) []string {
	return groupsnapshot.OthersOf(c, handle, members, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver),
		s.snapshots.By(cluster.ContentsByDriver, c.Spec.Driver))
}

// apply does the step of a plan. goOn says that the next one can be done at once.
func (s *snapshotter) apply(
	ctx context.Context, f groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
) (result controller.Result, goOn bool, err error) {
	switch p.Step {
	case groupsnapshot.Note:
		err = s.note(ctx, f, p)
	case groupsnapshot.Forget, groupsnapshot.Release:
		_, err = s.contents.Change(ctx, f.Content, p.Content)
	case groupsnapshot.Rest:
	default:
		then, err := s.call(ctx, &f, p)
		if err != nil {
			return result, false, err
		}
		return s.apply(ctx, f, then)
	}
	if err != nil {
		return result, false, err
	}
	s.tell(f.Content, p)
	return s.repeat(f.Content, p)
}

// note writes a status. If the driver is asked again whether the group is ready, the intent is not needed any more.
func (s *snapshotter) note(
	ctx context.Context, f groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
) error {
	content, err := s.contents.Change(ctx, f.Content, p.Content, "status")
	if err != nil || !p.Poll {
		return err
	}
	if then := groupsnapshot.Driver(s.gather(content)); then.Step == groupsnapshot.Forget {
		_, err = s.contents.Change(ctx, content, then.Content)
	}
	return err
}

// tell records the event of a plan.
func (s *snapshotter) tell(about *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan) {
	switch {
	case !p.Tell:
	case p.Repeat:
		s.Events.WarnWith(about, p.Because, s.TriedWithin().Notes())
	default:
		s.Events.Warn(about, p.Because)
	}
}

// repeat returns when a call is made again, if it is.
func (s *snapshotter) repeat(
	c *groupv1.VolumeGroupSnapshotContent, p groupsnapshot.DriverPlan,
) (result controller.Result, goOn bool, err error) {
	before := s.learn(c.UID, func(k *knowledge) {
		if k.polls++; !p.Repeat || !p.Poll {
			k.polls = 0
		}
	})
	switch {
	case !p.Repeat:
		return result, true, nil
	case p.Poll:
		return controller.Result{After: min(firstPoll<<min(before.polls, 10), maxPoll)}, false, nil
	}
	return result, false, fmt.Errorf("content %s: %w: %s", c.Name, errCall, p.Because.Message)
}
