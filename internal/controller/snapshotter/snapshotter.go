package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	// places is the number of calls about snapshots that may be in flight at each driver; one namespace may have half of
	// them.
	places = 20
	// firstPoll is the pause after the first answer that a snapshot is not ready; it doubles up to maxPoll.
	firstPoll, maxPoll = time.Second, time.Minute
)

// errCall says that a call of a driver has failed.
var errCall = errors.New("a call is made again")

// Declaration is what the snapshotter reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "snapshotter",
		Inputs: kube.Read(volume.GroupSnapshot, volume.ResourceSnapshotContents, volume.ResourceSnapshotClasses),
		Outputs: []kube.Access{
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "patch").
				Only(kube.Annotation(volume.AnnSnapshotCreating), kube.Annotation(volume.AnnSnapshotParameters)).
				Shared("with the intent to take a snapshot, if somebody has removed it, and away when the driver keeps nothing",
					kube.Finalizer(volume.FinalizerContentBound)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents+"/status", "patch").Only("status"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type snapshotter struct {
	controller.Env
	*controller.Controller
	drivers  *csi.Set
	contents kube.Writer[*snapshotv1.VolumeSnapshotContent]
	classes  *kube.Cache[*snapshotv1.VolumeSnapshotClass]

	mu sync.Mutex
	// refused holds the contents whose drivers have certainly not taken the snapshot.
	refused map[types.UID]bool
	// removed holds the contents whose drivers have deleted the snapshot.
	removed map[types.UID]bool
	// polls counts, by content, the answers that a snapshot is not ready.
	polls map[types.UID]int
}

// New returns the snapshotter for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	s := &snapshotter{
		Env: env, drivers: drivers, refused: map[types.UID]bool{}, removed: map[types.UID]bool{},
		polls: map[types.UID]int{},
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: 10, Places: places, RetryMin: 100 * time.Millisecond, Log: env.Log,
		},
		contents: env.Caches.WriteContents(env.Client), classes: env.Caches.SnapshotClasses(),
	}
	s.Controller.Reconcile = s.reconcile
	s.contents.Watch(func(before, after *snapshotv1.VolumeSnapshotContent) {
		if after == nil {
			s.forget(before.UID)
		} else if concerns(before, after) {
			s.enqueue(after)
		}
	})
	s.classes.Watch(func(_, class *snapshotv1.VolumeSnapshotClass) {
		if class != nil {
			s.enqueueAll(class.Driver)
		}
	})
	drivers.Subscribe(s.enqueueAll)
	return s.Controller
}

func (s *snapshotter) enqueue(c *snapshotv1.VolumeSnapshotContent) {
	s.Add(controller.Key{Kind: kindContent, Name: c.Name})
}

func (s *snapshotter) enqueueAll(driver string) {
	for _, c := range s.contents.By(cluster.ContentsByDriver, driver) {
		s.enqueue(c)
	}
}

func (s *snapshotter) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, uid)
	delete(s.removed, uid)
	delete(s.polls, uid)
}

func (s *snapshotter) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	for range maxSteps {
		c, ok := s.contents.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		f := s.gather(c)
		plan := snapshot.Driver(f)
		if calls(plan) {
			lane := controller.Lane{Driver: c.Spec.Driver, Call: "snapshot", Namespace: c.Spec.VolumeSnapshotRef.Namespace}
			if pause := s.Enter(key, lane, func(b volume.Because) { s.Events.Warn(c, b) }); pause > 0 {
				return controller.Result{After: pause}, nil
			}
		}
		if plan.Step == snapshot.Rest {
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
func calls(p snapshot.DriverPlan) bool {
	switch p.Step {
	case snapshot.Record, snapshot.Take, snapshot.Get, snapshot.Look, snapshot.Remove:
		return true
	}
	return false
}

func (s *snapshotter) gather(c *snapshotv1.VolumeSnapshotContent) snapshot.DriverFacts {
	f := snapshot.DriverFacts{Content: c, Now: metav1.Now()}
	if name := c.Spec.VolumeSnapshotClassName; name != nil {
		f.Class, _ = s.classes.Get(*name)
	}
	if d, ok := s.drivers.For(c.Spec.Driver, snapshot.Home(c)); ok {
		f.Ours, f.Takes = true, d.Controller.Snapshot
		f.Lists, f.Gets = d.Controller.ListSnapshots, d.Controller.GetSnapshot
	}
	if c.DeletionTimestamp != nil {
		f.Others = s.others(c, snapshot.HandleOf(c))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Refused, f.Removed = s.refused[c.UID], s.removed[c.UID]
	return f
}

// others returns the names of other contents that stand for a snapshot of a content's driver.
func (s *snapshotter) others(c *snapshotv1.VolumeSnapshotContent, handle string) []string {
	return snapshot.OthersOf(c, handle, s.contents.By(cluster.ContentsByDriver, c.Spec.Driver))
}

// apply does the step of a plan. goOn says that the next one can be done at once.
func (s *snapshotter) apply(
	ctx context.Context, f snapshot.DriverFacts, p snapshot.DriverPlan,
) (result controller.Result, goOn bool, err error) {
	switch p.Step {
	case snapshot.Note:
		err = s.note(ctx, f, p)
	case snapshot.Forget, snapshot.Release:
		_, err = s.contents.Change(ctx, f.Content, p.Content)
	case snapshot.Rest:
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

// note writes a status. If the driver is asked again whether the snapshot is ready, the intent is not needed any more.
func (s *snapshotter) note(ctx context.Context, f snapshot.DriverFacts, p snapshot.DriverPlan) error {
	content, err := s.contents.Change(ctx, f.Content, p.Content, "status")
	if err != nil || !p.Poll {
		return err
	}
	if then := snapshot.Driver(s.gather(content)); then.Step == snapshot.Forget {
		_, err = s.contents.Change(ctx, content, then.Content)
	}
	return err
}

// tell records the event of a plan.
func (s *snapshotter) tell(about *snapshotv1.VolumeSnapshotContent, p snapshot.DriverPlan) {
	switch {
	case !p.Tell:
	case p.Warn && p.Repeat:
		s.Events.WarnWith(about, p.Because, s.TriedWithin().Notes())
	case p.Warn:
		s.Events.Warn(about, p.Because)
	default:
		s.Events.Note(about, p.Because)
	}
}

// repeat returns when a call is made again, if it is.
func (s *snapshotter) repeat(
	c *snapshotv1.VolumeSnapshotContent, p snapshot.DriverPlan,
) (result controller.Result, goOn bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.polls[c.UID]
	delete(s.polls, c.UID)
	switch {
	case !p.Repeat:
		return result, true, nil
	case p.Poll:
		s.polls[c.UID] = n + 1
		return controller.Result{After: min(firstPoll<<min(n, 10), maxPoll)}, false, nil
	}
	return result, false, fmt.Errorf("content %s: %w: %s", c.Name, errCall, p.Because.Message)
}
