package protect

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/ephemeral"
	"volplane.dev/volplane/internal/volume"
)

// Claim returns the claim to write, or nil. A claim without the finalizer gets it: the admission of
// another API server may not have added it. A claim that is being deleted loses the finalizer,
// unless one of the Pods that name the claim uses it. A Pod uses its claims from the time when it
// has a node until its object is deleted: the volumes of a finished Pod may still be mounted.
func Claim(claim *corev1.PersistentVolumeClaim, users []*corev1.Pod) (*corev1.PersistentVolumeClaim, volume.Because) {
	protected := slices.Contains(claim.Finalizers, volume.FinalizerClaimProtection)
	switch {
	case claim.DeletionTimestamp == nil && !protected:
		c := claim.DeepCopy()
		c.Finalizers = append(c.Finalizers, volume.FinalizerClaimProtection)
		return c, volume.Because{Reason: volume.ReasonProtecting, Message: "claim " + claim.Name + " has no protection yet"}
	case claim.DeletionTimestamp == nil || !protected:
		return nil, volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "claim " + claim.Name + " is not waiting to be freed",
		}
	}
	// A Pod does not use the ephemeral claim of an earlier Pod with the same name.
	users = slices.DeleteFunc(slices.Clone(users),
		func(p *corev1.Pod) bool { return p.Spec.NodeName == "" || ephemeral.Stranger(p, claim) })
	if len(users) > 0 {
		return nil, volume.Say(volume.ReasonInUse, volume.PodActor(users[0].Name),
			"claim "+claim.Name+" is used by "+names(users))
	}
	c := claim.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerClaimProtection)
	return c, volume.Say(volume.ReasonNotInUse, volume.Controller("protection"),
		"claim "+claim.Name+" is not used by any pod")
}

// AttributesClass returns the VolumeAttributesClass to write, or nil. A class without the finalizer gets it. A class
// that is being deleted loses it, unless a claim or a volume names it: whoever is working towards it needs its
// parameters.
func AttributesClass(
	class *storagev1.VolumeAttributesClass, claims []*corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume,
) (*storagev1.VolumeAttributesClass, volume.Because) {
	protected := slices.Contains(class.Finalizers, volume.FinalizerAttributesProtection)
	c := class.DeepCopy()
	switch {
	case class.DeletionTimestamp == nil && !protected:
		c.Finalizers = append(c.Finalizers, volume.FinalizerAttributesProtection)
		return c, volume.Because{Reason: volume.ReasonProtecting, Message: "class " + class.Name + " has no protection yet"}
	case class.DeletionTimestamp == nil || !protected:
		return nil, volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "class " + class.Name + " is not waiting to be freed",
		}
	case len(claims) > 0:
		return nil, volume.Say(volume.ReasonInUse, volume.User(),
			"class "+class.Name+" is named by claim "+claims[0].Namespace+"/"+claims[0].Name)
	case len(volumes) > 0:
		return nil, volume.Say(volume.ReasonInUse, volume.User(), "class "+class.Name+" is named by volume "+volumes[0].Name)
	}
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerAttributesProtection)
	return c, volume.Say(volume.ReasonNotInUse, volume.Controller("protection"),
		"class "+class.Name+" is not named any more")
}

// Volume returns the volume to write, or nil. A volume without the finalizer gets it. A volume that
// is being deleted loses it, unless the volume is bound to a claim.
func Volume(v *corev1.PersistentVolume) (*corev1.PersistentVolume, volume.Because) {
	protected := slices.Contains(v.Finalizers, volume.FinalizerVolumeProtection)
	switch {
	case v.DeletionTimestamp == nil && !protected:
		c := v.DeepCopy()
		c.Finalizers = append(c.Finalizers, volume.FinalizerVolumeProtection)
		return c, volume.Because{Reason: volume.ReasonProtecting, Message: "volume " + v.Name + " has no protection yet"}
	case v.DeletionTimestamp == nil || !protected:
		return nil, volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "volume " + v.Name + " is not waiting to be freed",
		}
	case v.Status.Phase == corev1.VolumeBound:
		return nil, volume.Say(volume.ReasonInUse, volume.User(), "volume "+v.Name+" is bound to a claim")
	case slices.Contains(v.Finalizers, volume.FinalizerProvisioner):
		// The provisioner removes both finalizers in one write; a second writer would only conflict.
		return nil, volume.Say(volume.ReasonDeleting, volume.Controller("provisioner"),
			"volume "+v.Name+" is kept by its provisioner")
	}
	c := v.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerVolumeProtection)
	return c, volume.Say(volume.ReasonNotInUse, volume.Controller("protection"), "volume "+v.Name+" is not bound")
}
