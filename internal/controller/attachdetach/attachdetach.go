package attachdetach

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
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

// maxUnmount is how long a node that is not ready may take to unmount before
// its volumes are detached by force; Kubernetes' own bound.
const maxUnmount = 6 * time.Minute

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "attachdetach",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods", "nodes"),
			kube.Read("storage.k8s.io", "volumeattachments", "csidrivers")...),
		Outputs: []kube.Access{
			kube.Write("storage.k8s.io", "volumeattachments", "create", "delete"),
			kube.Write("", "nodes/status", "patch"),
		},
	}
}

type attachDetach struct {
	controller.Env
	*controller.Controller
	now         func() time.Time
	claims      *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes     *kube.Cache[*corev1.PersistentVolume]
	pods        *kube.Cache[*corev1.Pod]
	nodes       *kube.Cache[*corev1.Node]
	attachments *kube.Cache[*storagev1.VolumeAttachment]
	drivers     *kube.Cache[*storagev1.CSIDriver]

	mu sync.Mutex
	// waiting is since when an attachment has waited for its node to unmount.
	waiting map[string]time.Time
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env, now func() time.Time) *controller.Controller {
	c := &attachDetach{
		Env: env, now: now, waiting: map[string]time.Time{},
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 16, Log: env.Log},
		claims:     env.Caches.Claims(), volumes: env.Caches.Volumes(), pods: env.Caches.Pods(), nodes: env.Caches.Nodes(),
		attachments: env.Caches.Attachments(), drivers: env.Caches.CSIDrivers(),
	}
	c.Controller.Reconcile = c.reconcile
	c.pods.Watch(func(before, after *corev1.Pod) {
		for _, p := range []*corev1.Pod{before, after} {
			if p != nil {
				c.wake(p.Spec.NodeName)
			}
		}
	})
	c.nodes.Watch(func(before, after *corev1.Node) {
		if after == nil {
			after = before
		}
		c.wake(after.Name)
	})
	c.claims.Watch(func(_, claim *corev1.PersistentVolumeClaim) {
		if claim != nil && claim.Spec.VolumeName != "" {
			c.wakeUsers(kube.Key(claim))
		}
	})
	c.volumes.Watch(func(_, v *corev1.PersistentVolume) { c.wakeVolume(v) })
	c.attachments.Watch(c.attachmentChanged)
	return c.Controller
}

func (c *attachDetach) wake(node string) {
	if node != "" {
		c.Add(controller.Key{Kind: "node", Name: node})
	}
}

func (c *attachDetach) wakeUsers(claim string) {
	for _, p := range c.pods.By(kube.PodsByClaim, claim) {
		c.wake(p.Spec.NodeName)
	}
}

func (c *attachDetach) wakeVolume(v *corev1.PersistentVolume) {
	if v != nil && v.Spec.ClaimRef != nil {
		c.wakeUsers(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
	}
}

// attachmentChanged wakes the attachment's node and, when it has gone, the
// nodes whose Pods wait for the volume.
func (c *attachDetach) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	if after != nil {
		c.wake(after.Spec.NodeName)
		return
	}
	c.wake(before.Spec.NodeName)
	c.mu.Lock()
	delete(c.waiting, before.Name)
	c.mu.Unlock()
	if name := before.Spec.Source.PersistentVolumeName; name != nil {
		if v, ok := c.volumes.Get(*name); ok {
			c.wakeVolume(v)
		}
	}
}

func (c *attachDetach) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	facts := c.gather(key.Name)
	return c.apply(ctx, facts, attach.Node(facts))
}

func (c *attachDetach) gather(node string) attach.NodeFacts {
	f := attach.NodeFacts{Name: node, Volumes: map[string]*corev1.PersistentVolume{}, Overdue: map[string]bool{}}
	f.Node, _ = c.nodes.Get(node)
	for _, p := range c.pods.By(kube.PodsByNode, node) {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, name := range kube.ClaimNames(p) {
			if v := c.volumeOf(p.Namespace + "/" + name); v != nil {
				f.Wishes = append(f.Wishes, c.wish(v, p, node))
			}
		}
	}
	f.Attachments = c.attachments.By(kube.AttachmentsByNode, node)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range f.Attachments {
		if name := a.Spec.Source.PersistentVolumeName; name != nil {
			if v, ok := c.volumes.Get(*name); ok {
				f.Volumes[*name] = v
			}
		}
		since, ok := c.waiting[a.Name]
		f.Overdue[a.Name] = ok && c.now().Sub(since) >= maxUnmount
	}
	return f
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
	w := attach.Wish{Volume: v, Pod: p}
	if d, ok := c.drivers.Get(v.Spec.CSI.Driver); ok && d.Spec.AttachRequired != nil {
		w.Needless = !*d.Spec.AttachRequired
	}
	for _, a := range c.attachments.By(kube.AttachmentsByVolume, v.Name) {
		if a.Spec.NodeName != node {
			w.Elsewhere = append(w.Elsewhere, a)
		}
	}
	if len(w.Elsewhere) > 0 {
		ref := v.Spec.ClaimRef
		for _, other := range c.pods.By(kube.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			if other.Spec.NodeName == w.Elsewhere[0].Spec.NodeName {
				w.Holder = other.Name
			}
		}
	}
	return w
}

func (c *attachDetach) apply(ctx context.Context, f attach.NodeFacts, p attach.NodePlan) (controller.Result, error) {
	node := f.Node
	if p.Publish {
		var err error
		if node, err = c.publish(ctx, f.Name, p.Attached); err != nil {
			return controller.Result{}, err
		}
	}
	var result controller.Result
	for _, d := range p.Detach {
		after, err := c.detach(ctx, node, d)
		if err != nil {
			return result, err
		}
		result.After = max(result.After, after)
	}
	for _, a := range p.Attach {
		_, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return result, fmt.Errorf("attach: create %s: %w", a.Name, err)
		}
	}
	for _, b := range p.Blocked {
		c.Events.Warn(b.Pod, b.Event())
	}
	return result, nil
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

// detach deletes an attachment when the node, as it was after it was told,
// does not use the volume. The node says that it uses a volume before it looks
// whether it may, so that one of the two always sees the other.
func (c *attachDetach) detach(ctx context.Context, node *corev1.Node, d attach.Detachment) (time.Duration, error) {
	if !d.Force && attach.InUse(node, d.Unique) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, ok := c.waiting[d.Attachment.Name]; !ok {
			c.waiting[d.Attachment.Name] = c.now()
		}
		return maxUnmount, nil
	}
	a := d.Attachment
	err := c.Client.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("detach: delete %s: %w", a.Name, err)
	}
	return 0, nil
}
