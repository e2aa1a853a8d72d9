package contents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindContent = "content"
	// maxSteps is more than the steps that a content can need in one reconcile. A content that needs more is queued again.
	maxSteps = 10
	// firstPoll is the pause after the first answer that something is not ready; it doubles up to maxPoll.
	firstPoll, maxPoll = time.Second, time.Minute
	// rivalPause is the delay before a content that waits for another one is reconciled again.
	rivalPause = 10 * time.Second
	// callLimit is for calls that may copy or delete data; it is the default of upstream's csi-snapshotter. After it the
	// same call is repeated.
	callLimit = time.Minute
)

var (
	// errSteps says that a content had more to do than expected.
	errSteps = errors.New("more steps than expected; it will be reconciled again")
	// errCall says that a call of a driver has failed.
	errCall = errors.New("a call is repeated")
	errGone = errors.New("driver has gone")
)

// Kind is the difference between the calls for contents of snapshots and for those of groups.
type Kind[C object[C]] interface {
	// Class returns the class with a name; nil if it does not exist.
	Class(name string) *snapshot.Class
	// Can returns the capabilities of a driver: take and delete, list, and look for one.
	Can(d *csi.Driver) (takes, lists, gets bool)
	// Others returns the names of other contents that refer to c's driver's snapshot with a handle, or to one of its
	// members.
	Others(c C, handle string, members []string) []string
	// Take and Find make the call of a plan and return the decision about the answer. Delete makes the driver delete what
	// a plan names.
	Take(ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string) snapshot.PlanFor[C]
	Find(ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string) snapshot.PlanFor[C]
	Delete(ctx context.Context, d *csi.Driver, p snapshot.PlanFor[C], secret map[string]string) volume.Answer
}

// Loop is a controller of contents.
type Loop[C object[C]] struct {
	Env     controller.Env
	Drivers *csi.Set
	Kind    Kind[C]
	Decide  *snapshot.ContentKind[C]
	Options snapshot.Options
	Writer  kube.Writer[C]
	// Call names the calls about contents of this kind, whose number in flight is limited at each driver.
	Call string

	controller *controller.Controller
	mu         sync.Mutex
	// known holds, by content, facts from the last calls that are not in the API.
	known map[types.UID]knowledge
}

// matters are the fields of a content that determine the driver call: a change of one is a reason to call. They include
// nothing that this controller writes, which would defeat its back-off.
type matters struct {
	uid, ref                                           types.UID
	deleted, deletes                                   bool
	class, going, secret, vault, node, lost, group, of string
}

func (l *Loop[C]) matters(c C) matters {
	v, noted := l.Decide.View(c), func(key string) string { return c.GetAnnotations()[key] }
	return matters{
		uid: c.GetUID(), ref: v.Ref.UID, deleted: c.GetDeletionTimestamp() != nil, deletes: v.Deletes, class: v.Class,
		going: noted(l.Decide.Deleting), secret: noted(l.Decide.SecretName), vault: noted(l.Decide.SecretNamespace),
		node: noted(volume.AnnProvisionedOn), lost: noted(volume.AnnLostWith),
		group: noted(volume.AnnGroupSnapshotHandle), of: c.GetLabels()[volume.LabelSnapshotsOf],
	}
}

// driver returns the driver of a content; nil if this process does not call it.
func (l *Loop[C]) driver(c C) *csi.Driver {
	home := cmp.Or(l.Options.Node, c.GetAnnotations()[volume.AnnProvisionedOn])
	if d, ok := l.Drivers.For(l.Decide.View(c).Driver, home); ok {
		return d
	}
	return nil
}

// Facts returns the facts for the decision about an answer.
func Facts[C object[C]](c C) snapshot.DriverFactsOf[C] {
	return snapshot.DriverFactsOf[C]{Content: c, Now: metav1.Now()}
}

// knowledge is what calls have said about a content.
type knowledge struct {
	snapshot.Known
	// polls counts the answers that something is not ready.
	polls int
}

// New returns the controller of a loop. It must be made before the caches start.
func New[C object[C]](l *Loop[C], d controller.Declaration, workers, places int) *controller.Controller {
	l.known = map[types.UID]knowledge{}
	l.controller = &controller.Controller{
		Declaration: d, Workers: workers, Places: places, RetryMin: 100 * time.Millisecond, Pace: l.Env.Pace,
		Log: l.Env.Log, Reconcile: l.reconcile,
	}
	l.Writer.Watch(func(before, after C) {
		var none C
		if after == none {
			l.learn(before.GetUID(), func(k *knowledge) { *k = knowledge{} })
		} else if before == none || l.matters(before) != l.matters(after) {
			l.enqueue(after)
		}
	})
	l.Drivers.Subscribe(l.EnqueueAll)
	return l.controller
}

func (l *Loop[C]) enqueue(c C) {
	l.controller.Add(controller.Key{Kind: kindContent, Name: c.GetName()})
}

// EnqueueAll queues all contents of a driver.
func (l *Loop[C]) EnqueueAll(driver string) {
	for _, c := range l.Writer.By(cluster.ContentsByDriver, driver) {
		l.enqueue(c)
	}
}

// learn changes the remembered facts about a content.
func (l *Loop[C]) learn(uid types.UID, change func(*knowledge)) (before knowledge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.known[uid]
	after := before
	if change(&after); after == (knowledge{}) {
		delete(l.known, uid)
	} else {
		l.known[uid] = after
	}
	return before
}

// plan decides about a content from the current facts.
func (l *Loop[C]) plan(c C) snapshot.PlanFor[C] {
	f, v := Facts(c), l.Decide.View(c)
	f.Known, f.Options = l.learn(c.GetUID(), func(*knowledge) {}).Known, l.Options
	if v.Class != "" {
		f.Class = l.Kind.Class(v.Class)
	}
	if l.Options.NameLength > 0 {
		f.Rivals = l.Decide.RivalsOf(l.Options, v.Driver, l.Writer.By(cluster.ContentsByDriver, v.Driver))
	}
	if d := l.driver(c); d != nil && l.Options.Has(c) {
		f.Reachable = true
		f.Takes, f.Lists, f.Gets = l.Kind.Can(d)
		f.Places = l.Options.Topology && d.Plugin.SnapshotAccessibilityConstraints
	}
	if c.GetDeletionTimestamp() != nil {
		f.Others = l.Kind.Others(c, v.Handle, v.Members)
	}
	return l.Decide.Driver(f)
}

func (l *Loop[C]) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	for range maxSteps {
		c, ok := l.Writer.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		plan := l.plan(c)
		if plan.Calls() {
			v := l.Decide.View(c)
			lane := controller.Lane{Driver: v.Driver, Call: l.Call, Namespace: v.Ref.Namespace}
			pause := l.controller.Enter(key, lane, func(b volume.Because) { l.Env.Events.Warn(c, b) })
			if pause > 0 {
				return controller.Result{After: pause}, nil
			}
		}
		if plan.Step == snapshot.Rest {
			l.recordEvent(c, plan)
			if plan.Repeat {
				return controller.Result{After: rivalPause}, nil
			}
			return controller.Result{}, nil
		}
		result, goOn, err := l.apply(ctx, c, plan)
		if err != nil || !goOn {
			return result, kube.IgnoreNotFound(err)
		}
	}
	return controller.Result{}, fmt.Errorf("%s: %w", key, errSteps)
}

// apply performs the step of a plan. goOn says that the next one can follow immediately.
func (l *Loop[C]) apply(
	ctx context.Context, c C, p snapshot.PlanFor[C],
) (result controller.Result, goOn bool, err error) {
	if p.Calls() {
		if c, p, err = l.call(ctx, c, p); err != nil {
			return result, false, err
		}
	}
	switch p.Step {
	case snapshot.Note:
		err = l.note(ctx, c, p)
	case snapshot.Forget, snapshot.Release:
		_, err = l.Writer.Change(ctx, c, p.Content)
	}
	if err != nil {
		return result, false, err
	}
	l.recordEvent(c, p)
	return l.repeat(c, p)
}

// note writes a status, and before it the place. When the driver is only called to see whether something is ready, the
// intent is no longer needed.
func (l *Loop[C]) note(ctx context.Context, c C, p snapshot.PlanFor[C]) (err error) {
	var none, written C
	if p.Placed != none {
		if written, err = l.Writer.Change(ctx, c, p.Placed); err != nil {
			return err
		}
		c = p.Placed
		c.SetResourceVersion(written.GetResourceVersion())
	}
	c, err = l.Writer.Change(ctx, c, p.Content, "status")
	if err != nil || !p.Poll {
		return err
	}
	if then := l.plan(c); then.Step == snapshot.Forget {
		_, err = l.Writer.Change(ctx, c, then.Content)
	}
	return err
}

// recordEvent records the event of a plan.
func (l *Loop[C]) recordEvent(about C, p snapshot.PlanFor[C]) {
	switch {
	case !p.Event:
	case p.Warn && p.Repeat:
		l.Env.Events.WarnWith(about, p.Because, l.controller.TriedWithin().Notes())
	case p.Warn:
		l.Env.Events.Warn(about, p.Because)
	default:
		l.Env.Events.Note(about, p.Because)
	}
}

// repeat returns when a call is made again, if it is.
func (l *Loop[C]) repeat(c C, p snapshot.PlanFor[C]) (result controller.Result, goOn bool, err error) {
	before := l.learn(c.GetUID(), func(k *knowledge) {
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
	return result, false, fmt.Errorf("content %s: %w: %s", c.GetName(), errCall, p.Because.Message)
}

// call writes the intent of a plan, if it needs one, and makes the call. It returns the content, with the intent, and
// the decision about the answer.
func (l *Loop[C]) call(ctx context.Context, c C, p snapshot.PlanFor[C]) (C, snapshot.PlanFor[C], error) {
	d, v := l.driver(c), l.Decide.View(c)
	if d == nil {
		return c, p, fmt.Errorf("%s: %w", v.Driver, errGone)
	}
	ctx = csi.About(ctx, csi.Subject{Object: l.Call + "/" + v.Ref.Namespace + "/" + v.Ref.Name})
	if p.Step == snapshot.Remove {
		then, err := l.remove(ctx, d, c, p)
		return c, then, err
	}
	// The Secret is read before the intent is written: without it the driver is not asked.
	secret, err := kube.SecretData(ctx, l.Env.Client, p.Request.Secret)
	if err != nil {
		a := volume.Answer{Text: err.Error(), NoSecret: errors.Is(err, volume.ErrNoSecret)}
		return c, l.Decide.SecretUnread(Facts(c), a), nil
	}
	if p.Step == snapshot.Get || p.Step == snapshot.Look {
		return c, l.Kind.Find(ctx, d, c, p, secret), nil
	}
	if p.Step == snapshot.Record {
		if c, err = l.Writer.Change(ctx, c, p.Content); err != nil {
			return c, p, err
		}
	}
	return c, l.take(ctx, d, c, p, secret), nil
}

func (l *Loop[C]) take(
	ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string,
) snapshot.PlanFor[C] {
	l.learn(c.GetUID(), func(k *knowledge) { k.Refused = false })
	then := l.Kind.Take(csi.OwnLimit(ctx, callLimit), d, c, p, secret)
	l.learn(c.GetUID(), func(k *knowledge) { k.Refused = then.Refused })
	return then
}

func (l *Loop[C]) remove(
	ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C],
) (snapshot.PlanFor[C], error) {
	secret, missing, err := kube.SecretDataLeft(ctx, l.Env.Client, p.Request.Secret)
	if err != nil {
		return p, err
	}
	a := l.Kind.Delete(csi.OwnLimit(ctx, callLimit), d, p, secret)
	if a.Outcome == volume.Done {
		l.learn(c.GetUID(), func(k *knowledge) { k.Removed = true })
	}
	if missing != nil {
		a.Missing = missing.Error()
	}
	return l.Decide.AfterRemove(Facts(c), p, a), nil
}

// Taken turns a driver's description of a snapshot into the form that decisions use.
func Taken(s *csipb.Snapshot) snapshot.Taken {
	return snapshot.Taken{
		Handle: s.GetSnapshotId(), Source: s.GetSourceVolumeId(), Bytes: s.GetSizeBytes(), Ready: s.GetReadyToUse(),
		Created: Nanoseconds(s.GetCreationTime()), Group: s.GetGroupSnapshotId(),
		Places: csi.Segments[topology.Segment](s.GetAccessibleTopology()),
	}
}

// Nanoseconds returns a time in nanoseconds since 1970; 0 if there is none.
func Nanoseconds(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixNano()
}
