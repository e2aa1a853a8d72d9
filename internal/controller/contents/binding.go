package contents

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
)

// object is an object of the API that decisions copy.
type object[T any] interface {
	kube.Object
	DeepCopy() T
}

// Binding performs the steps of the controllers that bind user objects, S, to contents, C.
type Binding[S object[S], C object[C], O any] struct {
	controller.Env
	*controller.Controller
	Kind      *snapshot.Kind[S, C, O]
	Snapshots kube.Writer[S]
	Contents  kube.Writer[C]
	// WriteOther performs the write of a plan for another object.
	WriteOther func(ctx context.Context, other O) error
}

// Decision is a plan about a snapshot.
type Decision[S, C, O any] struct {
	// Snapshot and Content are the objects of the decision. Content may be nil: ContentName is the name that it must have.
	Snapshot    S
	Content     C
	ContentName string
	Plan        snapshot.PlanOf[S, C, O]
	// Refused decides about a write of the plan that the API server has refused for good; ok is false if the refusal has
	// no consequence.
	Refused func(problem string) (then snapshot.PlanOf[S, C, O], ok bool)
}

// Do performs the step of a decision. done says that no step follows.
func (b *Binding[S, C, O]) Do(ctx context.Context, d Decision[S, C, O]) (done bool, err error) {
	if d.Plan.Step == snapshot.Confirm {
		return false, Look(ctx, b.Contents, "", d.ContentName)
	}
	if err = b.apply(ctx, d, d.Plan); kube.RefusedForGood(err) {
		if then, ok := d.Refused(err.Error()); ok {
			return true, errors.Join(err, b.apply(ctx, d, then))
		}
	}
	return d.Plan.Step == snapshot.Nothing, err
}

// apply does the step of a plan, and records its events.
func (b *Binding[S, C, O]) apply(ctx context.Context, d Decision[S, C, O], p snapshot.PlanOf[S, C, O]) (err error) {
	switch p.Step {
	case snapshot.WriteSnapshot:
		_, err = b.Snapshots.Change(ctx, d.Snapshot, p.Snapshot)
	case snapshot.WriteStatus:
		_, err = b.Snapshots.Change(ctx, d.Snapshot, p.Snapshot, "status")
	case snapshot.WriteOther:
		err = b.WriteOther(ctx, p.Other)
	case snapshot.CreateContent:
		_, _, err = b.Contents.Ensure(ctx, p.Content)
	case snapshot.WriteContent:
		_, err = b.Contents.Change(ctx, d.Content, p.Content)
	case snapshot.DeleteContent:
		err = b.Contents.Delete(ctx, p.Content, metav1.DeleteOptions{})
	case snapshot.Nothing, snapshot.Confirm:
	}
	if err == nil {
		b.Record(d.Snapshot, p)
	}
	return err
}

// Record records the events of a plan about an object.
func (b *Binding[S, C, O]) Record(about runtime.Object, p snapshot.PlanOf[S, C, O]) {
	switch {
	case p.Event && p.Warn:
		b.Events.Warn(about, p.Because)
	case p.Event:
		b.Events.Note(about, p.Because)
	}
	for _, because := range p.Also {
		b.Events.Note(about, because)
	}
}

// StepContent does the next step for a content that does not concern its driver.
func (b *Binding[S, C, O]) StepContent(ctx context.Context, key controller.Key, absent bool) (done bool, err error) {
	content, ok := b.Contents.Get(key.Name)
	if !ok {
		return true, nil
	}
	ref := b.Kind.View(content).Ref
	f := snapshot.ContentFactsOf[S, C]{Content: content}
	f.Snapshot, ok = b.Snapshots.Get(ref.Namespace + "/" + ref.Name)
	f.Absent = absent && !ok
	switch plan := b.Kind.Content(f); plan.Step {
	case snapshot.Confirm:
		return false, Look(ctx, b.Snapshots, ref.Namespace, ref.Name)
	case snapshot.WriteContent:
		_, err = b.Contents.Change(ctx, content, plan.Content)
		return false, err
	default:
		b.Record(content, plan)
		return true, nil
	}
}

// errAbsent says that the API server itself has said that an object does not exist.
var errAbsent = errors.New("the object does not exist")

// Step performs the next step for a key. absent means that Look, in an earlier step, found that an object does not
// exist.
type Step func(ctx context.Context, key controller.Key, absent bool) (done bool, err error)

// Steps performs up to most steps for a key; if more remain, the key is queued again.
func Steps(ctx context.Context, key controller.Key, most int, next Step) (controller.Result, error) {
	absent := false
	for range most {
		done, err := next(ctx, key, absent)
		switch {
		case errors.Is(err, errAbsent):
			absent = true
		case done || err != nil:
			return controller.Result{}, kube.IgnoreNotFound(err)
		}
	}
	return controller.Result{}, fmt.Errorf("%s: %w", key, errSteps)
}

// Look reads an object that a cache does not have from the API server itself; its result is for Steps.
func Look[T kube.Object](ctx context.Context, w kube.Writer[T], namespace, name string) error {
	exists, err := w.Look(ctx, namespace, name)
	if err == nil && !exists {
		return errAbsent
	}
	return err
}
