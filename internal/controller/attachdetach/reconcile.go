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
)

func (c *attachDetach) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	facts := c.gather(key.Name)
	return c.apply(ctx, facts, attach.Node(facts))
}

func (c *attachDetach) gather(node string) attach.NodeFacts {
	f := attach.NodeFacts{
		Name: node, Attachments: c.attachments.By(kube.AttachmentsByNode, node), Volumes: map[string]*corev1.PersistentVolume{},
		Going: map[string]bool{}, Overdue: map[string]bool{}, Limits: map[string]int{},
	}
	f.Node, _ = c.nodes.Get(node)
	for _, p := range c.pods.By(kube.PodsByNode, node) {
		// A Pod that is being deleted counts until its node has unmounted and
		// taken it away.
		if finished(p) {
			continue
		}
		for _, name := range kube.ClaimNames(p) {
			if v := c.volumeOf(p.Namespace + "/" + name); v != nil {
				f.Wishes = append(f.Wishes, c.wish(v, p, node))
			}
		}
	}
	for _, a := range f.Attachments {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			if v, ok := c.volumes.Get(*name); ok {
				f.Volumes[*name] = v
			}
		}
		f.Going[a.Name] = c.isGoing(a.UID)
		f.Overdue[a.Name] = c.overdue(a.UID, c.now())
	}
	if n, ok := c.csiNodes.Get(node); ok {
		for _, d := range n.Spec.Drivers {
			if d.Allocatable != nil && d.Allocatable.Count != nil {
				f.Limits[d.Name] = int(*d.Allocatable.Count)
			}
		}
	}
	return f
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// volumeOf returns the volume that a claim is bound to, if both say so.
func (c *attachDetach) volumeOf(claim string) *corev1.PersistentVolume {
	pvc, ok := c.claims.Get(claim)
	if !ok || pvc.Status.Phase != corev1.ClaimBound {
		return nil
	}
	v, ok := c.volumes.Get(pvc.Spec.VolumeName)
	if !ok || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != pvc.UID {
		return nil
	}
	return v
}

func (c *attachDetach) wish(v *corev1.PersistentVolume, p *corev1.Pod, node string) attach.Wish {
	w := attach.Wish{Volume: v, Pod: p, Elsewhere: c.elsewhere(v.Name, node)}
	if d, ok := c.drivers.Get(v.Spec.CSI.Driver); ok {
		w.Needless = needless(d)
	}
	if len(w.Elsewhere) > 0 {
		ref := v.Spec.ClaimRef
		for _, other := range c.pods.By(kube.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			if other.Spec.NodeName == w.Elsewhere[0].Spec.NodeName && !finished(other) {
				w.Holder = other.Name
			}
		}
	}
	return w
}

// elsewhere returns the attachments of a volume to other nodes.
func (c *attachDetach) elsewhere(volume, node string) []*storagev1.VolumeAttachment {
	return slices.DeleteFunc(c.attachments.By(kube.AttachmentsByVolume, volume), func(a *storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == node
	})
}

func (c *attachDetach) apply(ctx context.Context, f attach.NodeFacts, p attach.NodePlan) (controller.Result, error) {
	c.remember(f, p)
	node := f.Node
	if p.Publish {
		var err error
		if node, err = c.publish(ctx, f.Name, p.Attached); err != nil {
			return controller.Result{}, err
		}
	}
	c.tell(p.Notices)
	var result controller.Result
	for _, d := range p.Detach {
		left, err := c.detach(ctx, node, d)
		if err != nil {
			return result, err
		}
		if left > 0 && (result.After == 0 || left < result.After) {
			result.After = left
		}
	}
	for _, a := range p.Attach {
		if err := c.attach(ctx, a); err != nil {
			return result, err
		}
	}
	return result, nil
}

// remember ends the waits and reservations that the plan has overtaken.
func (c *attachDetach) remember(f attach.NodeFacts, p attach.NodePlan) {
	for _, a := range f.Attachments {
		if !slices.ContainsFunc(p.Detach, func(d attach.Detachment) bool { return d.Attachment == a }) {
			c.wantedAgain(a.UID)
		}
	}
	wanted := map[string]bool{}
	for _, w := range f.Wishes {
		wanted[w.Volume.Name] = true
	}
	for _, name := range c.freeUnwanted(f.Name, wanted) {
		c.wakeVolumeNamed(name)
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

// detach deletes an attachment that the node does not use. Its volume is not in
// volumesAttached in the version of the node that is looked at here, and a node
// says that it uses a volume before it looks there: a use that this version
// does not show yet will find that it must not mount.
func (c *attachDetach) detach(ctx context.Context, node *corev1.Node, d attach.Detachment) (time.Duration, error) {
	a := d.Attachment
	if !d.Force && attach.InUse(node, d.Unique) {
		return c.wait(a.UID, c.now()), nil
	}
	// Whatever the answer is, it may be on its way out from here.
	first := c.goes(a.UID)
	// Of this very version: the API server may delete an attachment to which
	// the attacher adds its finalizer meanwhile, and nobody would detach
	// (kubernetes/kubernetes#77988).
	err := c.Client.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion},
	})
	if apierrors.IsConflict(err) && first {
		c.stays(a.UID)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("detach: delete %s: %w", a.Name, err)
	}
	return 0, nil
}

// attach makes an attachment, unless the volume went to another node since the
// decision; then the change wakes this node again.
func (c *attachDetach) attach(ctx context.Context, a attach.Attachable) error {
	node, v := a.Attachment.Spec.NodeName, a.Volume
	if !attach.Shareable(v) && !c.take(v.Name, node, func() bool { return len(c.elsewhere(v.Name, node)) > 0 }) {
		return nil
	}
	_, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, a.Attachment, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("attach: create %s: %w", a.Attachment.Name, err)
	}
	return nil
}
