package resize

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// ConditionOf returns the condition of a claim's size.
func ConditionOf(f Facts) volume.Condition {
	p, cause := Claim(f), Failure(f.Claim)
	if p.Step == Hand && isNodePending(f.Claim) {
		p.Because = Pending(f)
	}
	switch {
	case cause == "" || p.Step == Nothing && p.Because.Reason != volume.ReasonNodeResizePending:
		return volume.Condition{Because: p.Because, Stuck: p.Tell || p.Step == Nothing && IsInfeasible(f.Claim)}
	case p.Because.Reason == volume.ReasonNodeResizePending:
		return volume.Condition{Because: FailedOnNode(f.Claim, p.Because.Next, volume.AnswerIn(cause)), Stuck: true}
	}
	return volume.Condition{Because: Failed(f.Claim, f.Volume.Spec.CSI.Driver, volume.AnswerIn(cause)), Stuck: true}
}

// isNodePending says whether a condition, without a resource status, says that the node has to expand
// the filesystem.
func isNodePending(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(k corev1.PersistentVolumeClaimCondition) bool {
		return k.Type == corev1.PersistentVolumeClaimFileSystemResizePending && k.Status == corev1.ConditionTrue
	})
}

// FailedOnNode is the reason of a filesystem that was not expanded; repeats is who tries again.
func FailedOnNode(c *corev1.PersistentVolumeClaim, repeats volume.Actor, a volume.Answer) volume.Because {
	return a.Because(volume.ReasonFailedNodeResize, repeats, "the filesystem of claim "+c.Name+" did not grow: "+a.Text)
}
