package bind

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/volume"
)

// Link returns the writes that bind a claim to a volume, without those done already: the volume's reference, its phase
// and the claim's reference at the same time, the claim's status. In this order, after a crash between two writes no
// other claim can take the volume, and the next decision does the rest (S4); and a claim that is Bound has a volume
// that is.
func Link(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) Plan {
	p := wait(volume.ReasonBound, Silent, volume.Actor{},
		"claim "+claim.Namespace+"/"+claim.Name+" is bound to volume "+v.Name)
	v = linkVolume(&p, claim, v)
	p.Writes = append(p.Writes, volumePhase(v, corev1.VolumeBound)...)
	claim = linkClaim(&p, claim, v)
	linkStatus(&p, claim, v)
	if len(p.Writes) > 0 {
		p.Because = volume.Say(volume.ReasonBinding, volume.Controller("binder"),
			"claim "+claim.Namespace+"/"+claim.Name+" is being bound to volume "+v.Name)
	}
	return p.unlessLost(v)
}

// unlessLost returns the plan, with another reason if the volume needs nothing and was lost with its node.
func (p Plan) unlessLost(v *corev1.PersistentVolume) Plan {
	b, lost := volume.LostWithNode("volume "+v.Name, v.Annotations)
	if lost && len(p.Writes) == 0 && p.Because.Next.IsZero() {
		p.Because, p.Event = b, Warning
	}
	return p
}

func linkVolume(p *Plan, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolume {
	if ref := v.Spec.ClaimRef; ref != nil && ref.UID == claim.UID {
		return v
	}
	c := v.DeepCopy()
	if v.Spec.ClaimRef == nil {
		// The annotation allows unlink to remove the reference; a user's reference stays.
		annotate(&c.Annotations, volume.AnnBoundByController, "yes")
	}
	c.Spec.ClaimRef = Reference(claim)
	p.Writes = append(p.Writes, Write{Volume: c})
	return c
}

// Reference returns the complete reference to a claim, for spec.claimRef of a volume.
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
			// The volume was created for this claim. A request within the process did not write the
			// annotations that name the provisioner, so they are written now.
			if r := requested(c, by); r != nil {
				c = r
			}
		}
	}
	annotate(&c.Annotations, volume.AnnBindCompleted, "yes")
	if claim.Spec.VolumeName == c.Spec.VolumeName && maps.Equal(claim.Annotations, c.Annotations) {
		return claim
	}
	beside := len(p.Writes) > 0 && p.Writes[len(p.Writes)-1].VolumeStatus != nil
	p.Writes = append(p.Writes, Write{Claim: c, Beside: beside})
	return c
}

// linkStatus makes the claim Bound. It sets the claim's capacity only when the claim becomes Bound:
// later, a difference from the volume's capacity means that the node has to expand the filesystem.
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
