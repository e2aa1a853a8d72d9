package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/health"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// report is the part of a Pod's status and annotations about its volumes.
type report struct {
	reason     any
	conditions []corev1.PodCondition
	notes      map[string]any
	health     []corev1.PodVolumeHealth
	// changed says that conditions or notes differ from those of the Pod, healthChanged that health does.
	changed, healthChanged bool
}

// report returns what to write of the result of podState.
func (p *Pods) report(pod *corev1.Pod, paths map[string]string, b volume.Because) (report, error) {
	want := corev1.PodCondition{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse,
		Reason: string(b.Reason), Message: b.Message,
	}
	r := report{notes: map[string]any{volume.AnnCalledAt: p.calledAt(pod, b)}}
	notes := map[string]string{
		volume.AnnNextMounted: b.Next.String(), volume.AnnCauseMounted: b.Cause.String(), volume.AnnPaths: "",
	}
	if paths != nil {
		want.Status, r.reason = corev1.ConditionTrue, string(volume.ReasonMounted)
		text, err := json.Marshal(paths)
		if err != nil {
			return report{}, fmt.Errorf("encode the paths of pod %s: %w", cluster.Key(pod), err)
		}
		notes[volume.AnnPaths] = string(text)
	}
	r.changed = !setTransitionTime(&want, cluster.PodCondition(pod, volume.ConditionVolumesMounted))
	r.conditions = []corev1.PodCondition{want}
	if h, sick := p.podHealth(pod); h != nil {
		r.changed = !setTransitionTime(h, cluster.PodCondition(pod, h.Type)) || r.changed
		r.conditions = append(r.conditions, *h)
		notes[volume.AnnNextHealthy], notes[volume.AnnCauseHealthy] = sick.Next.String(), sick.Cause.String()
	}
	for name, text := range notes {
		r.changed = r.changed || pod.Annotations[name] != text
		if r.notes[name] = text; text == "" {
			r.notes[name] = nil
		}
	}
	r.health, r.healthChanged = p.volumeHealth(pod)
	return r, nil
}

// patch returns the patch that writes a report. The UID in it excludes another Pod of the same name.
func (r report) patch(pod *corev1.Pod) ([]byte, error) {
	status := map[string]any{"reason": r.reason, "conditions": r.conditions}
	if r.healthChanged {
		// The list is replaced as a whole.
		status["volumeHealth"] = r.health
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": r.notes}, "status": status,
	})
}

// writeCondition writes the result of podState and the health of volumes into the Pod's status, and returns whether it
// has changed.
func (p *Pods) writeCondition(
	ctx context.Context, pod *corev1.Pod, paths map[string]string, b volume.Because,
) (changed bool, err error) {
	r, err := p.report(pod, paths, b)
	if err != nil {
		return false, err
	}
	if !r.changed && (!r.healthChanged || p.dropsHealth.Load()) {
		return false, nil
	}
	body, err := r.patch(pod)
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
	if r.healthChanged {
		p.dropsHealth.Store(len(written.Status.VolumeHealth) == 0)
	}
	return true, nil
}

// volumeHealth returns the volumeHealth of the Pod's status, and whether it differs from what the Pod has. Inline
// volumes have no entry, as with a kubelet.
func (p *Pods) volumeHealth(pod *corev1.Pod) (told []corev1.PodVolumeHealth, news bool) {
	var seen []health.Seen
	for _, u := range p.Finder.Of(pod) {
		if u.PV != nil && !u.Inline {
			s, _ := p.health.Of(u.Key())
			seen = append(seen, health.Seen{Name: u.Name, Known: s.Reported, Conditions: s.Conditions})
		}
	}
	return health.OfPod(pod.Status.VolumeHealth, seen, metav1.Now())
}

// calledAt returns the annotation of the call that a Pod waits for; nil removes it.
func (p *Pods) calledAt(pod *corev1.Pod, b volume.Because) any {
	for _, u := range p.Finder.Of(pod) {
		if u.PV == nil || p.volumes.Because(u.Key(), p.target(pod, u)) != b {
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

// podHealth returns the condition of the Pod's volumes' health, and why the first one is not healthy. The condition is
// nil if all volumes are healthy and always were. A volume that was unhealthy before the agent's start stays so until
// it has been inspected.
func (p *Pods) podHealth(pod *corev1.Pod) (c *corev1.PodCondition, sick volume.Because) {
	before := cluster.PodCondition(pod, volume.ConditionVolumesHealthy)
	was := volume.CauseOf(pod.Annotations[volume.AnnCauseHealthy], "")
	c = &corev1.PodCondition{
		Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionTrue, Reason: string(volume.ReasonHealthy),
		Message: "all volumes are healthy",
	}
	pending := false
	for _, u := range p.Finder.Of(pod) {
		if u.PV == nil {
			continue
		}
		s, inspected := p.health.Of(u.Key())
		pending = pending || !inspected && cluster.IsFalse(before) && (was.Object == "" || was.Object == "pv/"+u.PV.Name)
		if s.Health != "" && c.Status == corev1.ConditionTrue {
			sick = decide.Health(s.Volume, p.Node, s.Health, s.Next)
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, string(sick.Reason), sick.Message
		}
	}
	if c.Status == corev1.ConditionTrue && (before == nil || pending) {
		return before.DeepCopy(), volume.Because{Next: volume.ParseActor(pod.Annotations[volume.AnnNextHealthy]), Cause: was}
	}
	return c, sick
}

// GiveUp fails a Pod that waits for a volume which this node cannot mount, as a kubelet does, so that
// its controller can create another Pod on another node. A Pod that has had all its volumes may be
// running and is left alone.
func (p *Pods) GiveUp(ctx context.Context, pod *corev1.Pod, b volume.Because) error {
	if c := cluster.PodCondition(pod, volume.ConditionVolumesMounted); cluster.IsTrue(c) {
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
