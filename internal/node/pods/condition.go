package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// writeCondition says in the Pod's status what podState found, and returns
// whether that is a change. The UID keeps it from another Pod of the same name.
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
	same := follows(&want, uses.Mounted(pod))
	says, next := []corev1.PodCondition{want}, map[string]string{volume.AnnNextMounted: b.Next}
	if h, who := p.podHealth(pod); h != nil {
		same = follows(h, uses.Condition(pod, h.Type)) && same
		says, next[volume.AnnNextHealthy] = append(says, *h), who
	}
	notes := map[string]any{}
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
		"status":   map[string]any{"reason": reason, "conditions": says},
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

// follows gives a condition the time since when it is so, and says whether it says
// the same as the one before.
func follows(now, before *corev1.PodCondition) (same bool) {
	now.LastTransitionTime = metav1.Now()
	if before == nil {
		return false
	}
	if now.Status == before.Status {
		now.LastTransitionTime = before.LastTransitionTime
	}
	return now.Status == before.Status && now.Reason == before.Reason && now.Message == before.Message
}

// podHealth returns what the Pod's condition says of how its volumes are, and who
// has to act; nothing for one whose volumes are well and always were. What was ill
// before this agent was started is so until it has been looked at.
func (p *Pods) podHealth(pod *corev1.Pod) (c *corev1.PodCondition, next string) {
	before := uses.Condition(pod, volume.ConditionVolumesHealthy)
	c = &corev1.PodCondition{
		Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionTrue, Reason: string(volume.ReasonHealthy),
		Message: "all volumes are well again",
	}
	waits := false
	for _, u := range p.Finder.Of(pod) {
		if u.PV == nil {
			continue
		}
		s, looked := p.health.Of(u.Key())
		waits = waits || !looked && before != nil && strings.Contains(before.Message, "volume "+u.PV.Name+" ")
		if s.Health != "" && c.Status == corev1.ConditionTrue {
			b := decide.Health(s.Volume, p.Node, s.Health, s.Next)
			c.Status, c.Reason, c.Message, next = corev1.ConditionFalse, string(b.Reason), b.Message, b.Next
		}
	}
	if c.Status == corev1.ConditionTrue && (before == nil || waits) {
		return before.DeepCopy(), pod.Annotations[volume.AnnNextHealthy]
	}
	return c, next
}

// GiveUp ends a Pod that waits for a volume which it will not get here, as a kubelet
// does, so that whoever made it can have another elsewhere. A Pod that had all of its
// volumes may be running and is left alone.
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
