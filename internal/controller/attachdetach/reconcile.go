package attachdetach

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
)

func (c *attachDetach) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindAttach:
		return controller.Result{}, c.attach(ctx, key.Name)
	case kindDetach:
		return controller.Result{}, c.detach(ctx, key.Name)
	}
	// The pause after a look is a share of real time; Now is the time that decisions are about.
	start := time.Now()
	if left := c.delayLeft(key.Name, start); left > 0 {
		return controller.Result{After: left}, nil
	}
	facts := c.gather(key.Name)
	plan := attach.Node(facts)
	// A node with many volumes occupies a worker for at most half of the time.
	delay := time.Since(start)
	if plan.Publish && plan.More {
		delay = max(delay, pause)
	}
	result, err := c.apply(ctx, facts, plan)
	c.delay(key.Name, time.Now().Add(delay))
	return result, err
}

// sooner returns the result with After reduced to the given pause; 0 means no pause.
func sooner(r controller.Result, after time.Duration) controller.Result {
	if after > 0 && (r.After == 0 || after < r.After) {
		r.After = after
	}
	return r
}

func (c *attachDetach) gather(node string) attach.NodeFacts {
	// The memory is read before the caches, so that each attachment is in one of the two.
	return attach.FactsOf(c.view, node, attach.Memory{
		Creating: c.creationsOn(node), Deleting: c.allDeleting(),
		Overdue: func(a types.UID) bool { return c.overdue(a, c.Now()) },
		Had:     c.history.has, Near: c.Near,
		DisableForceDetachOnTimeout: c.DisableForceDetachOnTimeout,
	})
}

// apply writes the node's status. It only queues the attachments to create and delete, so that they
// are written at the same time.
func (c *attachDetach) apply(
	ctx context.Context, f attach.NodeFacts, p attach.NodePlan,
) (result controller.Result, err error) {
	switch outdated, err := c.isOutdated(ctx, f, p); {
	case err != nil:
		return result, err
	case outdated:
		c.enqueue(f.Name)
		return result, nil
	}
	c.remember(f, p)
	node := f.Node
	if p.Publish {
		if node, err = c.publish(ctx, node, p.Attached); err != nil {
			return result, err
		}
	}
	c.recordEvents(p.Notices)
	for _, d := range p.Detach {
		after, err := c.requestDetach(ctx, node, d)
		if err != nil {
			return result, err
		}
		result = sooner(result, after)
	}
	for _, a := range p.Attach {
		if c.addCreation(a) {
			c.Add(controller.Key{Kind: kindAttach, Name: a.Attachment.Name})
		}
	}
	return result, nil
}

// isOutdated says whether a node has changed since it was decided to detach volumes without waiting for it. The cache
// may not show yet that it is back, or in service again, and what is detached then may be in use.
func (c *attachDetach) isOutdated(ctx context.Context, f attach.NodeFacts, p attach.NodePlan) (bool, error) {
	if !slices.ContainsFunc(p.Detach, func(d attach.Detachment) bool { return d.Force || f.Node == nil }) {
		return false, nil
	}
	if exists, err := c.nodes.Look(ctx, "", f.Name); err != nil || !exists {
		return false, err
	}
	now, known := c.view.Nodes.Get(f.Name)
	return f.Node == nil || !known || now.ResourceVersion != f.Node.ResourceVersion, nil
}

// remember updates the memory: it ends waits and reservations that the plan does not need any more,
// and drops volumes from the history that cannot be on the node any more.
func (c *attachDetach) remember(f attach.NodeFacts, p attach.NodePlan) {
	c.history.retain(f.Name, func(unique string) bool { return p.HasAttachment[unique] || attach.InUse(f.Node, unique) })
	unwanted := map[types.UID]bool{}
	for _, d := range p.Detach {
		unwanted[d.Attachment.UID] = true
	}
	for _, a := range f.Attachments {
		// At a start the caches may have shown the attachment before its volume.
		c.recordAttached(nil, a, attach.VolumeOf(c.view, a))
		if !unwanted[a.UID] {
			c.cancelUnmount(a.UID)
		}
	}
	wanted := map[string]bool{}
	for _, w := range f.Desired {
		wanted[attach.Key(w.Volume)] = true
	}
	for _, key := range c.releaseUnwanted(f.Name, wanted) {
		c.enqueueHandle(key)
	}
}

// publish writes to the node's status which volumes it may mount, and returns the node as the API
// server has it, which is newer than the cache.
func (c *attachDetach) publish(
	ctx context.Context, node *corev1.Node, attached []corev1.AttachedVolume,
) (*corev1.Node, error) {
	if attached == nil {
		attached = []corev1.AttachedVolume{}
	}
	return c.nodes.Patch(ctx, node, types.MergePatchType,
		map[string]any{"status": map[string]any{"volumesAttached": attached}}, "status")
}

func (c *attachDetach) recordEvents(notices []attach.Notice) {
	for _, n := range notices {
		switch {
		case !n.Warn:
			c.Events.Note(n.Pod, n.Event())
		case c.addWarning(n.Pod.UID, n.Volume, n.Because.Message):
			c.Events.Warn(n.Pod, n.Event())
		}
	}
}

// requestDetach queues the deletion of an attachment, or returns for how long to wait until the
// node has unmounted the volume. This is safe although a mount may have just begun: the given
// version of the node does not have the volume in volumesAttached, and a node writes volumesInUse
// before it reads volumesAttached. A mount that this version does not show will not be done.
func (c *attachDetach) requestDetach(
	ctx context.Context, node *corev1.Node, d attach.Detachment,
) (after time.Duration, err error) {
	a := d.Attachment
	if !d.Force && attach.InUse(node, d.Unique) {
		if d.Stuck && c.addWarning(a.UID, d.Unique, d.Because.Message) {
			c.Events.Warn(a, d.Because)
			c.Events.Warn(node, d.Because)
		}
		return c.awaitUnmount(a.UID, c.Now()), nil
	}
	if d.Unknown != "" && !c.isDeleting(a.UID) {
		// The cache may be late. What it shows from now on includes the volume.
		if exists, err := c.volumes.Look(ctx, "", d.Unknown); exists || err != nil {
			c.enqueue(a.Spec.NodeName)
			return 0, err
		}
	}
	if !c.startDeletion(a.UID) {
		return 0, nil
	}
	if d.Force {
		c.Events.Warn(a, d.Because)
		c.Events.Warn(node, d.Because)
	}
	c.Add(controller.Key{Kind: kindDetach, Name: a.Name})
	return 0, nil
}

// detach deletes an attachment whose deletion was decided.
func (c *attachDetach) detach(ctx context.Context, name string) error {
	a, ok := c.view.Attachments.Get(name)
	if !ok || a.DeletionTimestamp != nil || !c.isDeleting(a.UID) {
		return nil
	}
	o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))}
	if !attach.HasFinalizer(a) {
		// Only this version may be deleted: if the attacher adds its finalizer at the same time, the API server could delete
		// the attachment nevertheless, and the volume would never be detached (kubernetes/kubernetes#77988).
		o.Preconditions.ResourceVersion = &a.ResourceVersion
	}
	return c.attachments.Delete(ctx, a, o)
}

// attach creates an attachment, unless the volume was attached to another node since the decision; that change queues
// this node again. After an unknown outcome the creation is repeated even if the attachment is no longer wanted: until
// the outcome is known, the volume cannot be attached to another node. Only a creation that the API server has refused
// is given up.
func (c *attachDetach) attach(ctx context.Context, name string) error {
	a, ok := c.startCreation(name)
	if !ok {
		return nil
	}
	node, v := a.Attachment.Spec.NodeName, a.Volume
	if !attach.Shareable(v) &&
		!c.reserve(attach.Key(v), node, func() bool { return attach.InUseElsewhere(c.view, v, node, c.history.has) }) {
		c.cancelCreation(name)
		return nil
	}
	_, _, err := c.attachments.Ensure(ctx, a.Attachment)
	switch {
	case err == nil:
		c.creationDone(name)
	case refused(err):
		c.creationRefused(name)
		c.enqueue(node)
	}
	return err
}

// refused says whether an error means that the request had no effect and will have none.
func refused(err error) bool {
	return kube.RefusedForGood(err) || apierrors.IsNotFound(err)
}
