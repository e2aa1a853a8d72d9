package bind

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// VolumeFacts is what the decision about one volume depends on.
type VolumeFacts struct {
	Volume *corev1.PersistentVolume
	// Claim is the claim with the name and UID in the volume's reference, or nil.
	Claim *corev1.PersistentVolumeClaim
	// Namesake is a claim with that name and another UID, or nil.
	Namesake *corev1.PersistentVolumeClaim
}

// Volume decides about one volume.
func Volume(f VolumeFacts) Plan { return decideVolume(f).unlessLost(f.Volume) }

// decideVolume decides by what the volume and its claim say of each other.
func decideVolume(f VolumeFacts) Plan {
	v := f.Volume
	switch ref := v.Spec.ClaimRef; {
	case ref == nil:
		return wait(volume.ReasonAvailable, Silent, volume.Actor{}, "volume "+v.Name+" is available",
			volumePhase(v, corev1.VolumeAvailable)...)
	case ref.UID == "":
		return wait(volume.ReasonAvailable, Silent, volume.Actor{},
			"volume "+v.Name+" is kept for claim "+ref.Namespace+"/"+ref.Name,
			volumePhase(v, corev1.VolumeAvailable)...)
	case f.Claim == nil && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		Together(f.Namesake, v):
		return Plan{Because: UIDMismatch(f.Namesake, v), Event: Warning}
	case f.Claim == nil:
		return release(v)
	case f.Claim.Spec.VolumeName == "":
		return kept(v, f.Claim)
	case f.Claim.Spec.VolumeName == v.Name:
		return wait(volume.ReasonBound, Silent, volume.Actor{},
			"volume "+v.Name+" is bound to claim "+ref.Namespace+"/"+ref.Name,
			volumePhase(v, corev1.VolumeBound)...)
	case v.Annotations[volume.AnnProvisionedBy] != "" &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return release(v)
	default:
		return unlink(v)
	}
}

// kept is the plan for a volume whose claim is not bound yet.
func kept(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) Plan {
	if mode(v.Spec.VolumeMode) != mode(c.Spec.VolumeMode) {
		return wait(volume.ReasonVolumeMismatch, Warning, volume.User(), fmt.Sprintf(
			"volume %s, which is kept for claim %s/%s, cannot be bound: its volume mode is %s, the claim's is %s",
			v.Name, c.Namespace, c.Name, mode(v.Spec.VolumeMode), mode(c.Spec.VolumeMode)))
	}
	// The decision about the claim binds it.
	return wait(volume.ReasonBinding, Silent, volume.Controller("binder"),
		"volume "+v.Name+" waits for its claim to be bound")
}

// Together says whether a claim and a volume name each other, even if the volume's reference has
// another UID. Such a volume is not deleted: a user has edited its reference, or has created the
// claim again.
func Together(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	ref := v.Spec.ClaimRef
	return c != nil && ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name && c.Spec.VolumeName == v.Name
}

// UIDMismatch explains why a volume is kept whose reference has another UID than the claim.
func UIDMismatch(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) volume.Because {
	return volume.Sayf(volume.ReasonClaimUIDMismatch, volume.User(),
		"volume %s is kept: claim %s/%s names it and has uid %s, its claimRef has uid %s; write the claim's uid there, or "+
			"delete the claim", v.Name, c.Namespace, c.Name, c.UID, v.Spec.ClaimRef.UID)
}

// IsReleased says whether the claim of a volume is gone. A volume is Failed after a failed attempt to reclaim it,
// perhaps by another program or under another policy.
func IsReleased(v *corev1.PersistentVolume) bool {
	return v.Status.Phase == corev1.VolumeReleased || v.Status.Phase == corev1.VolumeFailed
}

// release marks a volume whose claim was deleted. The reclaim policy determines who acts next.
func release(v *corev1.PersistentVolume) Plan {
	var writes []Write
	if !IsReleased(v) {
		writes = volumePhase(v, corev1.VolumeReleased)
	}
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return wait(volume.ReasonRetained, Silent, volume.Actor{},
			"volume "+v.Name+" is released and retained with its data", writes...)
	case corev1.PersistentVolumeReclaimDelete:
		return wait(volume.ReasonReleased, Silent, volume.Controller("provisioner"),
			"volume "+v.Name+" is released and will be deleted", writes...)
	case corev1.PersistentVolumeReclaimRecycle:
		// Like Kubernetes for a volume whose plugin cannot recycle: volplane runs no recycler Pods.
		return failed(v, volume.ReasonFailedRecycle,
			"volume "+v.Name+" is released, and volplane recycles no volumes: delete its data and its claimRef, or the volume")
	default:
		return failed(v, volume.ReasonUnknownReclaimPolicy, "volume "+v.Name+" is released, and its reclaim policy \""+
			string(v.Spec.PersistentVolumeReclaimPolicy)+"\" is not known")
	}
}

// failed marks a volume that no component acts on any more.
func failed(v *corev1.PersistentVolume, reason volume.Reason, message string) Plan {
	p := wait(reason, Warning, volume.User(), message)
	if v.Status.Phase != corev1.VolumeFailed {
		c := v.DeepCopy()
		c.Status.Phase, c.Status.Message = corev1.VolumeFailed, message
		p.Writes = []Write{{VolumeStatus: c}}
	}
	return p
}

// unlink makes a volume available again whose claim was bound to another volume. It removes a
// reference that the binder has written, and from a user's reference the UID.
func unlink(v *corev1.PersistentVolume) Plan {
	c := v.DeepCopy()
	if v.Annotations[volume.AnnBoundByController] != "" {
		c.Spec.ClaimRef = nil
		delete(c.Annotations, volume.AnnBoundByController)
	} else {
		c.Spec.ClaimRef.UID, c.Spec.ClaimRef.ResourceVersion = "", ""
	}
	writes := append([]Write{{Volume: c}}, volumePhase(c, corev1.VolumeAvailable)...)
	return wait(volume.ReasonAvailable, Silent, volume.Actor{},
		"volume "+v.Name+" is available again: its claim is bound to another volume", writes...)
}
