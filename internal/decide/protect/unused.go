package protect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/ephemeral"
)

// Unused returns the condition Unused that a bound claim is to get, or nil if it has the right one. Unlike for the
// finalizer, a Pod also counts before it has a node, and not after it has finished: the condition tells admins since
// when nobody has wanted the volume. Its words are those of Kubernetes (gate PersistentVolumeClaimUnusedSinceTime).
func Unused(
	claim *corev1.PersistentVolumeClaim, users []*corev1.Pod, now metav1.Time,
) *corev1.PersistentVolumeClaimCondition {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return nil
	}
	next := &corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: now,
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if slices.ContainsFunc(users, func(p *corev1.Pod) bool {
		return !cluster.Finished(p) && !ephemeral.Stranger(p, claim)
	}) {
		next.Status, next.Reason = corev1.ConditionFalse, "PodUsingPVC"
		next.Message = "A pod is currently referencing this PVC"
	}
	if slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == next.Type && c.Status == next.Status
	}) {
		return nil
	}
	return next
}
