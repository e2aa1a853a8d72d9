package contents

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindContent = "content"
	// maxSteps is more than the steps that a content can need at once. One that needs more is looked at again.
	maxSteps = 10
	// firstPoll is the pause after the first answer that something is not ready; it doubles up to maxPoll.
	firstPoll, maxPoll = time.Second, time.Minute
	// rivalPause is the pause after which a content is looked at again that waits for another one.
	rivalPause = 10 * time.Second
	// callLimit is for calls that may copy or delete data; it is the default of upstream's csi-snapshotter. After it the
	// same call is made again.
	callLimit = time.Minute
)

var (
	// errSteps says that a content had more to do than expected.
	errSteps = errors.New("more steps than expected; it is looked at again")
	// errCall says that a call of a driver has failed.
	errCall = errors.New("a call is made again")
	errGone = errors.New("driver has gone")
)

// Kind is what differs between contents of snapshots and contents of groups.
type Kind[C kube.Object] interface {
	// About returns what a content is about.
	About(c C) About
	// Plan decides about a content. d is its driver, or nil if this process does not call it.
	Plan(c C, d *csi.Driver, k snapshot.Known) snapshot.PlanFor[C]
	// Take, Find and Remove make the call of a plan and return the decision about the answer. Removed says that the
	// driver has deleted what it was asked to delete; missing says why the call is made without its Secret, or nothing.
	Take(ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string) snapshot.PlanFor[C]
	Find(ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string) snapshot.PlanFor[C]
	Remove(
		ctx context.Context, d *csi.Driver, c C, p snapshot.PlanFor[C], secret map[string]string, missing string,
	) (then snapshot.PlanFor[C], removed bool)
	// SecretUnread returns the decision about a call that was not made because its Secret could not be read.
	SecretUnread(c C, a volume.Answer) snapshot.PlanFor[C]
}

// About is what a content is about.
type About struct {
	Driver string
	// Home is the node whose controllers call the driver; "" if it belongs to none.
	Home string
	// Call names the calls about contents of this kind, of which a limited number may be in flight at each driver, and
	// Namespace the user's namespace on whose behalf they are made.
	Call, Namespace string
	// Name is the name of the user's object.
	Name string
	// Matters is equal for two states of a content if no change between them is one that the driver is to be asked for.
	// It must not depend on what this controller writes: that would defeat its back-off.
	Matters any
}

// Loop is a controller of contents.
type Loop[C kube.Object] struct {
	Env     controller.Env
	Drivers *csi.Set
	Kind    Kind[C]
	Writer  kube.Writer[C]

	controller *controller.Controller
	mu         sync.Mutex
	// known holds, by content, what the last calls have said and what is not written to the API.
	known map[types.UID]knowledge
}

// knowledge is what calls have said about a content.
type knowledge struct {
	snapshot.Known
	// polls counts the answers that something is not ready.
	polls int
}

// New returns the controller of a loop. It must be made before the caches start.
func New[C kube.Object](l *Loop[C], d controller.Declaration, workers, places int) *controller.Controller {
	l.known = map[types.UID]knowledge{}
	l.controller = &controller.Controller{
		Declaration: d, Workers: workers, Places: places, RetryMin: 100 * time.Millisecond, Pace: l.Env.Pace,
		Log: l.Env.Log, Reconcile: l.reconcile,
	}
	l.Writer.Watch(func(before, after C) {
		var none C
		if after == none {
			l.learn(before.GetUID(), func(k *knowledge) { *k = knowledge{} })
		} else if before == none || l.Kind.About(before).Matters != l.Kind.About(after).Matters {
			l.enqueue(after)
		}
	})
	l.Drivers.Subscribe(l.EnqueueAll)
	return l.controller
}

func (l *Loop[C]) enqueue(c C) {
	l.controller.Add(controller.Key{Kind: kindContent, Name: c.GetName()})
}

// EnqueueAll has all contents of a driver looked at.
func (l *Loop[C]) EnqueueAll(driver string) {
	for _, c := range l.Writer.By(cluster.ContentsByDriver, driver) {
		l.enqueue(c)
	}
}

// learn changes what is known of a content.
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

// plan decides about a content by what is known of it now.
func (l *Loop[C]) plan(c C) snapshot.PlanFor[C] {
	about := l.Kind.About(c)
	d, ok := l.Drivers.For(about.Driver, about.Home)
	if !ok {
		d = nil
	}
	return l.Kind.Plan(c, d, l.learn(c.GetUID(), func(*knowledge) {}).Known)
}

func (l *Loop[C]) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	for range maxSteps {
		c, ok := l.Writer.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		plan := l.plan(c)
		if plan.Calls() {
			about := l.Kind.About(c)
			lane := controller.Lane{Driver: about.Driver, Call: about.Call, Namespace: about.Namespace}
			pause := l.controller.Enter(key, lane, func(b volume.Because) { l.Env.Events.Warn(c, b) })
			if pause > 0 {
				return controller.Result{After: pause}, nil
			}
		}
		if plan.Step == snapshot.Rest {
			l.tell(c, plan)
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

// apply does the step of a plan. goOn says that the next one can be done at once.
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
	l.tell(c, p)
	return l.repeat(c, p)
}

// note writes a status. If the driver is asked again whether something is ready, the intent is not needed any more.
func (l *Loop[C]) note(ctx context.Context, c C, p snapshot.PlanFor[C]) error {
	c, err := l.Writer.Change(ctx, c, p.Content, "status")
	if err != nil || !p.Poll {
		return err
	}
	if then := l.plan(c); then.Step == snapshot.Forget {
		_, err = l.Writer.Change(ctx, c, then.Content)
	}
	return err
}

// tell records the event of a plan.
func (l *Loop[C]) tell(about C, p snapshot.PlanFor[C]) {
	switch {
	case !p.Tell:
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

// call makes the call of a plan, after the intent is written if it needs one, and returns the content, with the intent,
// and the decision about the answer.
func (l *Loop[C]) call(ctx context.Context, c C, p snapshot.PlanFor[C]) (C, snapshot.PlanFor[C], error) {
	about := l.Kind.About(c)
	d, ok := l.Drivers.For(about.Driver, about.Home)
	if !ok {
		return c, p, fmt.Errorf("%s: %w", about.Driver, errGone)
	}
	ctx = csi.About(ctx, csi.Subject{Object: about.Call + "/" + about.Namespace + "/" + about.Name})
	if p.Step == snapshot.Remove {
		then, err := l.remove(ctx, d, c, p)
		return c, then, err
	}
	// The Secret is read before the intent is written: without it the driver is not asked.
	secret, err := kube.SecretData(ctx, l.Env.Client, p.Request.Secret)
	if err != nil {
		return c, l.Kind.SecretUnread(c, volume.Answer{Text: err.Error(), NoSecret: errors.Is(err, volume.ErrNoSecret)}), nil
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
	why := ""
	if missing != nil {
		why = missing.Error()
	}
	then, removed := l.Kind.Remove(csi.OwnLimit(ctx, callLimit), d, c, p, secret, why)
	if removed {
		l.learn(c.GetUID(), func(k *knowledge) { k.Removed = true })
	}
	return then, nil
}
