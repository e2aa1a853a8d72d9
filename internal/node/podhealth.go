package node

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// podHealth returns what the Pod's condition says of how its volumes are, and who
// has to act; nothing for one whose volumes are well and always were. What was ill
// before this agent was started is so until it has been looked at.
func (a *Agent) podHealth(pod *corev1.Pod) (c *corev1.PodCondition, next string) {
	before := uses.Condition(pod, volume.ConditionVolumesHealthy)
	c = &corev1.PodCondition{Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionTrue, Reason: string(volume.ReasonHealthy), Message: "all volumes are well again"}
	waits := false
	for _, u := range a.finder.Of(pod) {
		if u.PV == nil {
			continue
		}
		s, looked := a.health.Of(u.Key())
		waits = waits || !looked && before != nil && strings.Contains(before.Message, "volume "+u.PV.Name+" ")
		if s.Health != "" && c.Status == corev1.ConditionTrue {
			b := decide.Health(s.Volume, a.Name, s.Health, s.Next)
			c.Status, c.Reason, c.Message, next = corev1.ConditionFalse, string(b.Reason), b.Message, b.Next
		}
	}
	if c.Status == corev1.ConditionTrue && (before == nil || waits) {
		return before.DeepCopy(), pod.Annotations[volume.AnnNextHealthy]
	}
	return c, next
}
