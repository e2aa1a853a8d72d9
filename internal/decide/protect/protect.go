package protect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Claim returns a claim that is being deleted without its protection, or nil
// when it is not deleted, not protected, or one of the Pods that name it still
// uses it. A Pod uses its claims from when it has a node until its object is
// gone, even when it has ended: its volumes may still be mounted.
func Claim(claim *corev1.PersistentVolumeClaim, users []*corev1.Pod) (*corev1.PersistentVolumeClaim, volume.Because) {
	if claim.DeletionTimestamp == nil || !slices.Contains(claim.Finalizers, volume.FinalizerClaimProtection) {
		return nil, volume.Because{Reason: volume.ReasonNothingToDo, Message: "claim " + claim.Name + " is not waiting to be freed"}
	}
	for _, p := range users {
		if p.Spec.NodeName != "" {
			return nil, volume.Because{Reason: volume.ReasonInUse, Message: "claim " + claim.Name + " is used by pod " + p.Name, Next: "pod " + p.Name}
		}
	}
	c := claim.DeepCopy()
	c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == volume.FinalizerClaimProtection })
	return c, volume.Because{Reason: volume.ReasonNotInUse, Message: "claim " + claim.Name + " is not used by any pod"}
}

// Volume returns a volume that is being deleted without its protection, or nil
// when it is not deleted, not protected, or bound to a claim.
func Volume(v *corev1.PersistentVolume) (*corev1.PersistentVolume, volume.Because) {
	switch {
	case v.DeletionTimestamp == nil || !slices.Contains(v.Finalizers, volume.FinalizerVolumeProtection):
		return nil, volume.Because{Reason: volume.ReasonNothingToDo, Message: "volume " + v.Name + " is not waiting to be freed"}
	case v.Status.Phase == corev1.VolumeBound:
		return nil, volume.Because{Reason: volume.ReasonInUse, Message: "volume " + v.Name + " is bound to a claim", Next: "user"}
	}
	c := v.DeepCopy()
	c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == volume.FinalizerVolumeProtection })
	return c, volume.Because{Reason: volume.ReasonNotInUse, Message: "volume " + v.Name + " is not bound"}
}
