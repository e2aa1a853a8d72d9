package bind

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/volume"
)

// Link returns the four writes that bind a claim and a volume, less those that
// are done: the volume's reference, the volume's phase, the claim's reference,
// the claim's status. In this order a stop after any of them leaves a volume
// that nobody else may take, and the next decision finishes the rest (S4).
func Link(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) Plan {
	p := wait(volume.ReasonBound, Silent, "", "claim "+claim.Namespace+"/"+claim.Name+" is bound to volume "+v.Name)
	v = linkVolume(&p, claim, v)
	p.Writes = append(p.Writes, volumePhase(v, corev1.VolumeBound)...)
	claim = linkClaim(&p, claim, v)
	linkStatus(&p, claim, v)
	if len(p.Writes) > 0 {
		p.Because = volume.Because{
			Reason: volume.ReasonBinding, Next: "binder",
			Message: "claim " + claim.Namespace + "/" + claim.Name + " is being bound to volume " + v.Name,
		}
	}
	return p
}

func linkVolume(p *Plan, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolume {
	if ref := v.Spec.ClaimRef; ref != nil && ref.UID == claim.UID {
		return v
	}
	c := v.DeepCopy()
	if v.Spec.ClaimRef == nil {
		// Only a link of ours is ours to undo.
		annotate(&c.Annotations, volume.AnnBoundByController, "yes")
	}
	c.Spec.ClaimRef = Reference(claim)
	p.Writes = append(p.Writes, Write{Volume: c})
	return c
}

// Reference returns the full reference to a claim as a volume keeps it.
func Reference(claim *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name,
		UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
}

func linkClaim(p *Plan, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	c := claim.DeepCopy()
	if claim.Spec.VolumeName == "" {
		c.Spec.VolumeName = v.Name
		annotate(&c.Annotations, volume.AnnBoundByController, "yes")
		if by := v.Annotations[volume.AnnProvisionedBy]; by != "" && v.Annotations[volume.AnnBoundByController] == "" {
			// The volume was made for this claim: what a request within the
			// process has not written is written now.
			if r := requested(c, by); r != nil {
				c = r
			}
		}
	}
	annotate(&c.Annotations, volume.AnnBindCompleted, "yes")
	if claim.Spec.VolumeName == c.Spec.VolumeName && maps.Equal(claim.Annotations, c.Annotations) {
		return claim
	}
	p.Writes = append(p.Writes, Write{Claim: c})
	return c
}

// linkStatus makes the claim Bound. Its capacity is the volume's only at the
// moment it becomes Bound: later a difference says that a resize has not
// reached the node yet.
func linkStatus(p *Plan, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) {
	c := claim.DeepCopy()
	c.Status.AccessModes = slices.Clone(v.Spec.AccessModes)
	if claim.Status.Phase != corev1.ClaimBound {
		c.Status.Phase = corev1.ClaimBound
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: firstCapacity(v)}
		c.Status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(claim.Status, c.Status) {
		p.Writes = append(p.Writes, Write{ClaimStatus: c})
	}
}

func firstCapacity(v *corev1.PersistentVolume) resource.Quantity {
	if before, err := resource.ParseQuantity(v.Annotations[volume.AnnPreResizeCapacity]); err == nil {
		return before
	}
	return v.Spec.Capacity[corev1.ResourceStorage]
}
