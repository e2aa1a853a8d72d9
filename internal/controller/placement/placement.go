package placement

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "placement",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "volumeattachments")...),
		Outputs: []kube.Access{
			kube.Write("", "pods/binding", "create"), kube.Write("", "pods/status", "patch"),
			kube.Write("", "persistentvolumeclaims", "update"),
		},
	}
}

type placer struct {
	controller.Env
	*controller.Controller
	claims      *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes     *kube.Cache[*corev1.PersistentVolume]
	pods        *kube.Cache[*corev1.Pod]
	nodes       *kube.Cache[*corev1.Node]
	classes     *kube.Cache[*storagev1.StorageClass]
	csiNodes    *kube.Cache[*storagev1.CSINode]
	attachments *kube.Cache[*storagev1.VolumeAttachment]
}

// New returns the controller. It must be made before the caches start.
func New(env controller.Env) *controller.Controller {
	p := &placer{
		Env: env, Controller: &controller.Controller{Declaration: Declaration(), Workers: 8, Log: env.Log},
		claims: env.Caches.Claims(), volumes: env.Caches.Volumes(), pods: env.Caches.Pods(), nodes: env.Caches.Nodes(),
		classes: env.Caches.Classes(), csiNodes: env.Caches.CSINodes(), attachments: env.Caches.Attachments(),
	}
	p.Controller.Reconcile = p.reconcile
	p.pods.Watch(func(_, pod *corev1.Pod) {
		if pod != nil {
			p.wake(pod)
		}
	})
	p.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		if after == nil {
			after = before
		}
		for _, pod := range p.pods.By(kube.PodsByClaim, kube.Key(after)) {
			p.wake(pod)
		}
	})
	p.nodes.Watch(func(before, after *corev1.Node) {
		if after != nil && (before == nil || !sameForPlacing(before, after)) {
			p.wakeAll()
		}
	})
	p.csiNodes.Watch(func(_, _ *storagev1.CSINode) { p.wakeAll() })
	p.classes.Watch(func(_, _ *storagev1.StorageClass) { p.wakeAll() })
	return p.Controller
}

// sameForPlacing says that nothing has changed on a node that placing looks
// at; its status changes with every volume.
func sameForPlacing(a, b *corev1.Node) bool {
	return a.Generation == b.Generation && a.Spec.Unschedulable == b.Spec.Unschedulable && fmt.Sprint(a.Labels, a.Spec.Taints, ready(a)) == fmt.Sprint(b.Labels, b.Spec.Taints, ready(b))
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (p *placer) wake(pod *corev1.Pod) {
	p.Add(controller.Key{Kind: "pod", Namespace: pod.Namespace, Name: pod.Name})
}

func (p *placer) wakeAll() {
	for _, pod := range p.pods.By(kube.PodsByNode, "") {
		p.wake(pod)
	}
}

func (p *placer) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	pod, ok := p.pods.Get(key.Namespace + "/" + key.Name)
	if !ok || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 ||
		pod.Spec.NodeName == "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
		return controller.Result{}, nil
	}
	facts := p.gather(pod)
	if pod.Spec.NodeName != "" && len(facts.Claims) == 0 {
		return controller.Result{}, nil
	}
	return controller.Result{}, p.apply(ctx, pod, placement.Pod(facts))
}

func (p *placer) gather(pod *corev1.Pod) placement.Facts {
	f := placement.Facts{Pod: pod}
	for _, name := range kube.ClaimNames(pod) {
		c := placement.Claim{Name: name}
		c.Object, _ = p.claims.Get(pod.Namespace + "/" + name)
		if c.Object != nil {
			if class, _ := bind.ClassOf(c.Object); class != "" {
				c.Class, _ = p.classes.Get(class)
			}
			if c.Object.Status.Phase == corev1.ClaimBound {
				c.Volume, _ = p.volumes.Get(c.Object.Spec.VolumeName)
			}
		}
		f.Claims = append(f.Claims, c)
	}
	if pod.Spec.NodeName != "" {
		return f
	}
	for _, n := range p.nodes.List() {
		node := placement.Node{Object: n, Pods: len(p.pods.By(kube.PodsByNode, n.Name)), Volumes: map[string]int{}}
		node.CSI, _ = p.csiNodes.Get(n.Name)
		for _, a := range p.attachments.By(kube.AttachmentsByNode, n.Name) {
			node.Volumes[a.Spec.Attacher]++
		}
		f.Nodes = append(f.Nodes, node)
	}
	return f
}

func (p *placer) apply(ctx context.Context, pod *corev1.Pod, plan placement.Plan) error {
	for _, c := range plan.Select {
		got, err := p.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("select node for claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		p.claims.Wrote(got)
	}
	switch {
	case plan.Bind:
		return p.bind(ctx, pod, plan)
	case pod.Spec.NodeName != "" || plan.Node != "":
		return nil
	}
	return p.refuse(ctx, pod, plan.Because)
}

func (p *placer) bind(ctx context.Context, pod *corev1.Pod, plan placement.Plan) error {
	err := p.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: plan.Node},
	}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bind pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	p.Events.Note(pod, plan.Because)
	return nil
}

// refuse says on the Pod why it has no node yet, once for each reason.
func (p *placer) refuse(ctx context.Context, pod *corev1.Pod, why volume.Because) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message == why.Message {
			return nil
		}
	}
	why.Reason = volume.ReasonFailedPlacing
	p.Events.Warn(pod, why)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why.Message, LastTransitionTime: metav1.Now(),
	}}}})
	if err != nil {
		return fmt.Errorf("write condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
