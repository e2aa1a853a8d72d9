package placement

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func (p *placer) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindClass:
		p.reconcileClass(key.Name)
		return controller.Result{}, nil
	case kindClaim:
		return controller.Result{}, p.reconcileClaim(ctx, key)
	}
	pod, plan := p.choose(key.Namespace + "/" + key.Name)
	if pod == nil {
		return controller.Result{}, nil
	}
	result, err := p.apply(ctx, key, pod, plan)
	if err != nil {
		p.forgetPod(pod.UID)
	}
	return result, err
}

// relevant says whether a Pod needs a node, or has a node that may have to be selected for its claims.
func relevant(pod *corev1.Pod) bool {
	switch {
	case pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 || cluster.Finished(pod):
		return false
	case pod.Spec.NodeName == "":
		return pod.Spec.SchedulerName == corev1.DefaultSchedulerName
	}
	return len(cluster.ClaimNames(pod)) > 0
}

// choose decides about a Pod; it returns nil if there is nothing to do. The Pod is read under the lock: a Pod that has
// just got its node must not be placed again.
func (p *placer) choose(key string) (*corev1.Pod, placement.Plan) {
	p.choosing.Lock()
	defer p.choosing.Unlock()
	pod, ok := p.pods.Get(key)
	if !ok || !relevant(pod) {
		return nil, placement.Plan{}
	}
	plan := placement.Pod(p.gather(pod))
	for _, v := range plan.Reserve {
		p.memory.reserve(v)
	}
	// While its claims are being bound, a Pod keeps the chosen node.
	if pod.Spec.NodeName == "" && (plan.Node != "" || plan.Because.Reason != volume.ReasonWaitForBind) {
		p.place(pod, plan.Node)
	}
	return pod, plan
}

func (p *placer) apply(
	ctx context.Context, key controller.Key, pod *corev1.Pod, plan placement.Plan,
) (result controller.Result, err error) {
	if err := p.reserve(ctx, plan.Reserve); err != nil {
		return result, err
	}
	for _, c := range plan.Select {
		if _, err := p.claims.Update(ctx, c); err != nil {
			return result, err
		}
	}
	switch {
	case plan.Bind:
		return result, p.bind(ctx, pod, plan)
	case plan.Astray:
		p.Events.Warn(pod, plan.Because)
		return result, nil
	case pod.Spec.NodeName != "", plan.Node != "" && !hasRefusal(pod):
		return result, nil
	case plan.Because.Reason == volume.ReasonWaitForBind:
		if result.After = p.Lasts(key, plan.Because.Reason); result.After > 0 {
			return result, nil
		}
	}
	return result, p.refuse(ctx, pod, plan.Because)
}

// reserve writes the references to claims to the chosen volumes. After an error it ends the
// reservations of the volumes that are not written.
func (p *placer) reserve(ctx context.Context, volumes []*corev1.PersistentVolume) error {
	for i, v := range volumes {
		if _, err := p.volumes.Update(ctx, v); err != nil {
			for _, left := range volumes[i:] {
				current, _ := p.volumes.Get(left.Name)
				p.unreserve(left, current)
				p.AddAfter(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(left)}, offerPause)
			}
			return err
		}
		p.reservationWritten(v)
	}
	return nil
}

func (p *placer) bind(ctx context.Context, pod *corev1.Pod, plan placement.Plan) error {
	if err := kube.Bind(ctx, p.pods, pod, plan.Node); err != nil {
		return kube.IgnoreNotFound(err)
	}
	p.Events.Note(pod, plan.Because)
	return nil
}

// hasRefusal says whether the Pod's condition PodScheduled is False.
func hasRefusal(pod *corev1.Pod) bool {
	return cluster.IsFalse(cluster.PodCondition(pod, corev1.PodScheduled))
}

// refuse writes to the Pod's condition PodScheduled why it has no node yet, once for each message.
// The condition of a Pod that only waits for its claims has another reason, because no user has to
// act.
func (p *placer) refuse(ctx context.Context, pod *corev1.Pod, why volume.Because) error {
	if c := cluster.PodCondition(pod, corev1.PodScheduled); cluster.IsFalse(c) && c.Message == why.Message {
		return nil
	}
	reason := corev1.PodReasonUnschedulable
	if why.Reason == volume.ReasonWaitForBind {
		reason = string(why.Reason)
	}
	notes := map[string]any{volume.AnnNextScheduled: why.Next.String(), volume.AnnCauseScheduled: nil}
	if why.Cause != (volume.Cause{}) {
		notes[volume.AnnCauseScheduled] = why.Cause.String()
	}
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: why.Message,
		LastTransitionTime: metav1.Now(),
	}
	patch := map[string]any{
		"metadata": map[string]any{"annotations": notes},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	}
	if _, err := p.pods.Patch(ctx, pod, types.StrategicMergePatchType, patch, "status"); err != nil {
		return kube.IgnoreNotFound(err)
	}
	if why.Reason == volume.ReasonWaitForBind {
		p.Events.Note(pod, why)
	} else {
		p.Events.Warn(pod, why)
	}
	return nil
}
