package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// writeCondition writes the result of podState into the Pod's status, and returns whether it has
// changed. The UID in the patch excludes another Pod of the same name.
func (p *Pods) writeCondition(
	ctx context.Context, pod *corev1.Pod, ready bool, b volume.Because,
) (changed bool, err error) {
	want := corev1.PodCondition{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse,
		Reason: string(b.Reason), Message: b.Message,
	}
	var reason any
	if ready {
		want.Status, reason = corev1.ConditionTrue, string(volume.ReasonMounted)
	}
	same := setTransitionTime(&want, uses.Mounted(pod))
	conditions, next := []corev1.PodCondition{want}, map[string]string{volume.AnnNextMounted: b.Next}
	if h, who := p.podHealth(pod); h != nil {
		same = setTransitionTime(h, uses.Condition(pod, h.Type)) && same
		conditions, next[volume.AnnNextHealthy] = append(conditions, *h), who
	}
	notes := map[string]any{volume.AnnCalledAt: p.calledAt(pod, b)}
	for name, who := range next {
		if same = same && pod.Annotations[name] == who; who == "" {
			notes[name] = nil
			continue
		}
		notes[name] = who
	}
	if same {
		return false, nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": notes},
		"status":   map[string]any{"reason": reason, "conditions": conditions},
	})
	if err != nil {
		return false, fmt.Errorf("write condition of pod %s: %w", cluster.Key(pod), err)
	}
	written, err := p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write condition of pod %s: %w", cluster.Key(pod), err)
	}
	p.Cache.Wrote(written)
	return true, nil
}

// calledAt returns the annotation of the call that a Pod waits for; nil removes it.
func (p *Pods) calledAt(pod *corev1.Pod, b volume.Because) any {
	for _, u := range p.Finder.Of(pod) {
		if u.PV == nil || p.volumes.Because(u.Key()) != b {
			continue
		}
		if at := p.volumes.CalledAt(u.Key()); !at.IsZero() {
			return at.UTC().Format(time.RFC3339)
		}
	}
	return nil
}

// setTransitionTime sets the time of a condition's last transition, and says whether the condition is
// otherwise equal to the previous one.
func setTransitionTime(now, before *corev1.PodCondition) (same bool) {
	now.LastTransitionTime = metav1.Now()
	if before == nil {
		return false
	}
	if now.Status == before.Status {
		now.LastTransitionTime = before.LastTransitionTime
	}
	return now.Status == before.Status && now.Reason == before.Reason && now.Message == before.Message
}

// podHealth returns the condition of the Pod's volumes' health, and who acts next. It is nil if all
// volumes are healthy and always were. A volume that was unhealthy before the agent's start stays so
// until it has been inspected.
func (p *Pods) podHealth(pod *corev1.Pod) (c *corev1.PodCondition, next string) {
	before := uses.Condition(pod, volume.ConditionVolumesHealthy)
	c = &corev1.PodCondition{
		Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionTrue, Reason: string(volume.ReasonHealthy),
		Message: "all volumes are well again",
	}
	pending := false
	for _, u := range p.Finder.Of(pod) {
		if u.PV == nil {
			continue
		}
		s, inspected := p.health.Of(u.Key())
		pending = pending || !inspected && before != nil && strings.Contains(before.Message, "volume "+u.PV.Name+" ")
		if s.Health != "" && c.Status == corev1.ConditionTrue {
			b := decide.Health(s.Volume, p.Node, s.Health, s.Next)
			c.Status, c.Reason, c.Message, next = corev1.ConditionFalse, string(b.Reason), b.Message, b.Next
		}
	}
	if c.Status == corev1.ConditionTrue && (before == nil || pending) {
		return before.DeepCopy(), pod.Annotations[volume.AnnNextHealthy]
	}
	return c, next
}

// GiveUp fails a Pod that waits for a volume which this node cannot mount, as a kubelet does, so that
// its controller can create another Pod on another node. A Pod that has had all its volumes may be
// running and is left alone.
func (p *Pods) GiveUp(ctx context.Context, pod *corev1.Pod, b volume.Because) error {
	if c := uses.Mounted(pod); c != nil && c.Status == corev1.ConditionTrue {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{
			"phase": corev1.PodFailed, "reason": b.Reason, "message": b.Message, "conditions": []corev1.PodCondition{{
				Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse, Reason: string(b.Reason), Message: b.Message,
				LastTransitionTime: metav1.Now(),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err)
	}
	written, err := p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("give up pod %s: %w", cluster.Key(pod), err)
	default:
		p.Cache.Wrote(written)
		p.Events.Warn(pod, b)
	}
	return nil
}
