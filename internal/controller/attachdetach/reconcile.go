package attachdetach

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
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
	facts, again := c.gather(key.Name)
	plan := attach.Node(facts)
	// A node with many volumes is looked at half of the time at most.
	rest := c.Now().Sub(begin)
	if plan.Publish && plan.More {
		rest = max(rest, pause)
	}
	result, err := c.apply(ctx, facts, plan)
	c.rest(key.Name, c.Now().Add(rest))
	return sooner(result, again), err
}

// sooner returns the result with a time that is not later than the other; 0 is
// none.
func sooner(r controller.Result, after time.Duration) controller.Result {
	if after > 0 && (r.After == 0 || after < r.After) {
		r.After = after
	}
	return r
}

// gather returns the facts, and when they have to be looked at again.
func (c *attachDetach) gather(node string) (attach.NodeFacts, time.Duration) {
	// What is remembered until it shows comes before what shows.
	making, again := c.beingMade(node, c.Now())
	going := c.allGoing()
	f := attach.NodeFacts{
		Name: node, Making: making, Attachments: c.attachments.By(kube.AttachmentsByNode, node), Volumes: map[string]*corev1.PersistentVolume{},
		Going: map[string]bool{}, Overdue: map[string]bool{}, Limits: map[string]int{}, NodeIDs: map[string]string{},
		DisableForceDetachOnTimeout: c.DisableForceDetachOnTimeout,
	}
	f.Node, _ = c.nodes.Get(node)
	for _, a := range f.Attachments {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			if v, ok := c.volumes.Get(*name); ok {
				f.Volumes[*name] = v
			}
		}
		f.Going[a.Name] = going[a.UID]
		f.Overdue[a.Name] = c.overdue(a.UID, c.Now())
	}
	for _, p := range c.pods.By(kube.PodsByNode, node) {
		// A Pod that is being deleted counts until its node has unmounted and
		// taken it away.
		if !finished(p) {
			c.wishes(&f, p)
		}
	}
	c.capacities(&f)
	return f, again
}

// capacities adds what the drivers of the node's agent said of the node.
func (c *attachDetach) capacities(f *attach.NodeFacts) {
	n, ok := c.csiNodes.Get(f.Name)
	if !ok {
		return
	}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			f.Limits[d.Name] = int(*d.Allocatable.Count)
		}
		if c.Near != nil && c.Near(d.Name) {
			f.NodeIDs[d.Name] = d.NodeID
		}
	}
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// wishes adds what a Pod wants. A volume in the Pod itself is not attached, and
// a claim that is to live as long as the Pod counts only if it is the Pod's own.
func (c *attachDetach) wishes(f *attach.NodeFacts, p *corev1.Pod) {
	for i := range p.Spec.Volumes {
		var v *corev1.PersistentVolume
		switch s := &p.Spec.Volumes[i]; {
		case s.PersistentVolumeClaim != nil:
			v = c.volumeOf(p.Namespace+"/"+s.PersistentVolumeClaim.ClaimName, nil)
		case s.Ephemeral != nil:
			v = c.volumeOf(p.Namespace+"/"+p.Name+"-"+s.Name, p)
		}
		if v != nil {
			f.Wishes = append(f.Wishes, c.wish(f, v, p))
		}
	}
}

// volumeOf returns the volume that a claim is bound to, if both say so, and if
// the owner controls the claim when there has to be one.
func (c *attachDetach) volumeOf(claim string, owner *corev1.Pod) *corev1.PersistentVolume {
	pvc, ok := c.claims.Get(claim)
	if !ok || pvc.Status.Phase != corev1.ClaimBound || owner != nil && !metav1.IsControlledBy(pvc, owner) {
		return nil
	}
	v, ok := c.volumes.Get(pvc.Spec.VolumeName)
	if !ok || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != pvc.UID {
		return nil
	}
	return v
}

func (c *attachDetach) wish(f *attach.NodeFacts, v *corev1.PersistentVolume, p *corev1.Pod) attach.Wish {
	w := attach.Wish{Volume: v, Pod: p}
	if d, ok := c.drivers.Get(v.Spec.CSI.Driver); ok {
		w.Needless = needless(d)
	}
	if attach.Shareable(v) {
		return w
	}
	w.Elsewhere = c.elsewhere(v, f.Name)
	if len(w.Elsewhere) > 0 {
		w.Holder = c.holder(w.Elsewhere[0])
	} else {
		w.UsedOn = c.usedOn(v, f.Name)
	}
	return w
}

// usedOn returns another living node that says that it uses a volume and has it
// mounted, though its attachment may have been taken away by force. It is
// believed if one of its Pods has the volume, or if none is left but the volume
// has been attached there: any node can say that it uses any volume, and one that
// waits for a volume says so, too.
func (c *attachDetach) usedOn(v *corev1.PersistentVolume, node string) string {
	unique := volume.UniqueName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)
	for _, n := range c.nodes.By(kube.NodesByVolume, unique) {
		if n.Name == node || !attach.Living(n) {
			continue
		}
		if has, waits := c.podsOf(v, n.Name); has || !waits && c.had.has(n.Name, unique) {
			return n.Name
		}
	}
	return ""
}

// podsOf says whether one of a node's Pods has a volume, and whether any waits for
// it. One that has ended may have it if none waits.
func (c *attachDetach) podsOf(v *corev1.PersistentVolume, node string) (has, waits bool) {
	ended := false
	for _, same := range c.volumes.By(kube.VolumesByHandle, keyOf(v)) {
		ref := same.Spec.ClaimRef
		if ref == nil {
			continue
		}
		for _, p := range c.pods.By(kube.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			switch {
			case p.Spec.NodeName != node:
			case finished(p):
				ended = true
			case p.DeletionTimestamp != nil || isMounted(p):
				return true, waits
			default:
				waits = true
			}
		}
	}
	return ended && !waits, waits
}

func isMounted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == volume.ConditionVolumesMounted && c.Status == corev1.ConditionTrue
	})
}

// elsewhere returns the attachments of a volume to other nodes, also those of
// other objects that stand for it.
func (c *attachDetach) elsewhere(v *corev1.PersistentVolume, node string) []*storagev1.VolumeAttachment {
	names := []string{v.Name}
	for _, same := range c.volumes.By(kube.VolumesByHandle, keyOf(v)) {
		if same.Name != v.Name {
			names = append(names, same.Name)
		}
	}
	var out []*storagev1.VolumeAttachment
	for _, name := range names {
		for _, a := range c.attachments.By(kube.AttachmentsByVolume, name) {
			if a.Spec.NodeName != node {
				out = append(out, a)
			}
		}
	}
	return out
}

// holder returns a Pod that uses what an attachment is for, on its node; "" is
// none that is known.
func (c *attachDetach) holder(a *storagev1.VolumeAttachment) (name string) {
	v, ok := c.volumes.Get(*a.Spec.Source.PersistentVolumeName)
	if !ok || v.Spec.ClaimRef == nil {
		return ""
	}
	for _, p := range c.pods.By(kube.PodsByClaim, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name) {
		if p.Spec.NodeName == a.Spec.NodeName && !finished(p) {
			name = p.Name
		}
	}
	return name
}

// apply tells the node, and leaves the rest to keys of their own: they are many
// and do not wait for each other.
func (c *attachDetach) apply(ctx context.Context, f attach.NodeFacts, p attach.NodePlan) (result controller.Result, err error) {
	c.remember(f, p)
	node := f.Node
	if p.Publish {
		if node, err = c.publish(ctx, f.Name, p.Attached); err != nil {
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
		c.noteAttached(nil, a, c.volumeAttached(a))
		if !unwanted[a.UID] {
			c.wantedAgain(a.UID)
		}
	}
	wanted := map[string]bool{}
	for _, w := range f.Wishes {
		wanted[keyOf(w.Volume)] = true
	}
	for _, key := range c.freeUnwanted(f.Name, wanted) {
		c.wakeWaiting(key)
	}
}

// publish tells the node which volumes it may mount. The answer is the node as
// it is now, newer than any cache.
func (c *attachDetach) publish(ctx context.Context, name string, attached []corev1.AttachedVolume) (*corev1.Node, error) {
	if attached == nil {
		attached = []corev1.AttachedVolume{}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": attached}})
	if err != nil {
		return nil, fmt.Errorf("tell node %s: %w", name, err)
	}
	node, err := c.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("tell node %s: %w", name, err)
	}
	c.nodes.Wrote(node)
	return node, nil
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
	a, ok := c.attachments.Get(name)
	if !ok || a.DeletionTimestamp != nil || !c.isGoing(a.UID) {
		return nil
	}
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}}
	if !attach.Kept(a) {
		// Of this very version: the API server may delete an attachment to
		// which the attacher adds its finalizer meanwhile, and nobody would
		// detach (kubernetes/kubernetes#77988).
		o.Preconditions.ResourceVersion = &a.ResourceVersion
	}
	if err := c.Client.StorageV1().VolumeAttachments().Delete(ctx, name, o); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detach: delete %s: %w", name, err)
	}
	return nil
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
	if !attach.Shareable(v) && !c.take(keyOf(v), node, func() bool { return len(c.elsewhere(v, node)) > 0 || c.usedOn(v, node) != "" }) {
		c.unmake(name)
		return nil
	}
	got, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, a.Attachment, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.isMade(name, got.UID, c.Now())
		return nil
	case apierrors.IsAlreadyExists(err):
		c.isMade(name, "", c.Now())
		_, there := c.attachments.Get(name)
		c.shows(name, "", there)
		return nil
	case refused(err):
		c.isRefused(name)
		c.wake(node)
	}
	return fmt.Errorf("attach: create %s: %w", name, err)
}

// refused says that the API server did not, and will not, do what it was asked.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err)
}
