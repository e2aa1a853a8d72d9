package attachdetach

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
)

func (c *attachDetach) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindAttach:
		return controller.Result{}, c.attach(ctx, key.Name)
	case kindDetach:
		return controller.Result{}, c.detach(ctx, key.Name)
	}
	begin := c.Now()
	if left := c.resting(key.Name, begin); left > 0 {
		return controller.Result{After: left}, nil
	}
	facts := c.gather(key.Name)
	plan := attach.Node(facts)
	// A node with many volumes is looked at half of the time at most.
	rest := c.Now().Sub(begin)
	if plan.Publish && plan.More {
		rest = max(rest, pause)
	}
	result, err := c.apply(ctx, facts, plan)
	c.rest(key.Name, c.Now().Add(rest))
	return result, err
}

// sooner returns the result with a time that is not later than the other; 0 is
// none.
func sooner(r controller.Result, after time.Duration) controller.Result {
	if after > 0 && (r.After == 0 || after < r.After) {
		r.After = after
	}
	return r
}

func (c *attachDetach) gather(node string) attach.NodeFacts {
	// What is remembered until the caches show it comes before what they show.
	making := c.beingMade(node)
	return attach.FactsOf(c.view, node, attach.Memory{
		Making: making, Going: c.allGoing(), Overdue: func(a types.UID) bool { return c.overdue(a, c.Now()) },
		Had: c.had.has, Near: c.Near,
		DisableForceDetachOnTimeout: c.DisableForceDetachOnTimeout,
	})
}

// apply tells the node, and leaves the rest to keys of their own: they are many
// and do not wait for each other.
func (c *attachDetach) apply(
	ctx context.Context, f attach.NodeFacts, p attach.NodePlan,
) (result controller.Result, err error) {
	c.remember(f, p)
	node := f.Node
	if p.Publish {
		if node, err = c.publish(ctx, node, p.Attached); err != nil {
			return result, err
		}
	}
	c.tell(p.Notices)
	for _, d := range p.Detach {
		result = sooner(result, c.letGo(node, d))
	}
	for _, a := range p.Attach {
		if c.make(a) {
			c.Add(controller.Key{Kind: kindAttach, Name: a.Attachment.Name})
		}
	}
	return result, nil
}

// remember ends the waits and reservations that the plan has overtaken, and
// forgets what was attached to the node and is not there any more.
func (c *attachDetach) remember(f attach.NodeFacts, p attach.NodePlan) {
	c.had.keep(f.Name, func(unique string) bool { return p.There[unique] || attach.InUse(f.Node, unique) })
	unwanted := map[types.UID]bool{}
	for _, d := range p.Detach {
		unwanted[d.Attachment.UID] = true
	}
	for _, a := range f.Attachments {
		// At a start it may have been seen before its volume was.
		c.noteAttached(nil, a, attach.VolumeOf(c.view, a))
		if !unwanted[a.UID] {
			c.wantedAgain(a.UID)
		}
	}
	wanted := map[string]bool{}
	for _, w := range f.Wishes {
		wanted[attach.Key(w.Volume)] = true
	}
	for _, key := range c.freeUnwanted(f.Name, wanted) {
		c.wakeWaiting(key)
	}
}

// publish tells the node which volumes it may mount. The answer is the node as
// it is now, newer than any cache.
func (c *attachDetach) publish(
	ctx context.Context, node *corev1.Node, attached []corev1.AttachedVolume,
) (*corev1.Node, error) {
	if attached == nil {
		attached = []corev1.AttachedVolume{}
	}
	return c.nodes.Patch(ctx, node, types.MergePatchType,
		map[string]any{"status": map[string]any{"volumesAttached": attached}}, "status")
}

// tell writes what Pods have not been told yet.
func (c *attachDetach) tell(notices []attach.Notice) {
	for _, n := range notices {
		switch {
		case !n.Warn:
			c.Events.Note(n.Pod, n.Event())
		case c.news(n.Pod.UID, n.Volume, n.Because.Message):
			c.Events.Warn(n.Pod, n.Event())
		}
	}
}

// letGo has an attachment deleted that the node does not use, or says for how
// long the node is waited for. The volume is not in volumesAttached in the
// version of the node that is looked at here, and a node says that it uses a
// volume before it looks there: a use that this version does not show yet will
// find that it must not mount.
func (c *attachDetach) letGo(node *corev1.Node, d attach.Detachment) time.Duration {
	a := d.Attachment
	if !d.Force && attach.InUse(node, d.Unique) {
		if d.Stuck && c.news(a.UID, d.Unique, d.Because.Message) {
			c.Events.Warn(a, d.Because)
			c.Events.Warn(node, d.Because)
		}
		return c.wait(a.UID, c.Now())
	}
	// From here on it may be on its way out, and the node must not hear of it
	// again, whatever becomes of the deletion.
	if !c.goes(a.UID) {
		return 0
	}
	if d.Force {
		c.Events.Warn(a, d.Because)
		c.Events.Warn(node, d.Because)
	}
	c.Add(controller.Key{Kind: kindDetach, Name: a.Name})
	return 0
}

// detach deletes an attachment that is on its way out.
func (c *attachDetach) detach(ctx context.Context, name string) error {
	a, ok := c.view.Attachments.Get(name)
	if !ok || a.DeletionTimestamp != nil || !c.isGoing(a.UID) {
		return nil
	}
	o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))}
	if !attach.Kept(a) {
		// Of this very version: the API server may delete an attachment to
		// which the attacher adds its finalizer meanwhile, and nobody would
		// detach (kubernetes/kubernetes#77988).
		o.Preconditions.ResourceVersion = &a.ResourceVersion
	}
	return c.attachments.Delete(ctx, a, o)
}

// attach makes an attachment, unless the volume went to another node since the
// decision; then the change wakes this node again. What has begun is repeated
// until its outcome is known, though nobody may want it any more: until then
// the volume cannot go to another node. Only what was refused is given up.
func (c *attachDetach) attach(ctx context.Context, name string) error {
	a, noted := c.toMake(name)
	if !noted {
		return nil
	}
	node, v := a.Attachment.Spec.NodeName, a.Volume
	if !attach.Shareable(v) &&
		!c.take(attach.Key(v), node, func() bool { return attach.Away(c.view, v, node, c.had.has) }) {
		c.unmake(name)
		return nil
	}
	_, _, err := c.attachments.Ensure(ctx, a.Attachment)
	switch {
	case err == nil:
		c.isMade(name)
	case refused(err):
		c.isRefused(name)
		c.wake(node)
	}
	return err
}

// refused says that the API server did not, and will not, do what it was asked.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err)
}
