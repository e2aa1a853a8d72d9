package ephemeral

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Facts is what the decision about one volume of a Pod depends on.
type Facts struct {
	Pod *corev1.Pod
	// Volume is a volume of the Pod with a template.
	Volume *corev1.Volume
	// Claim is the claim with the volume's claim name, or nil.
	Claim *corev1.PersistentVolumeClaim
}

// Plan is the claim to create, or nil. Refused says that the Pod cannot have its volume.
type Plan struct {
	Create  *corev1.PersistentVolumeClaim
	Refused bool
	Because volume.Because
}

// NameOf returns the name of the claim of a Pod's volume.
func NameOf(p *corev1.Pod, v *corev1.Volume) string { return volume.EphemeralClaim(p.Name, v.Name) }

// Wants says whether a claim with a name must be created for a Pod.
func Wants(p *corev1.Pod, claim string) bool {
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Ephemeral != nil && NameOf(p, v) == claim {
			return true
		}
	}
	return false
}

// Stranger says whether a claim has the name of a Pod's ephemeral claim but was not created for the
// Pod. The Pod must not use it: users who may create Pods need not be allowed to use every claim.
func Stranger(p *corev1.Pod, c *corev1.PersistentVolumeClaim) bool {
	return Wants(p, c.Name) && (c.Namespace != p.Namespace || !metav1.IsControlledBy(c, p))
}

// Claim decides about the claim of one volume of a Pod.
func Claim(f Facts) Plan {
	p, c := f.Pod, f.Claim
	name := NameOf(p, f.Volume)
	switch {
	case p.DeletionTimestamp != nil:
		return Plan{Because: volume.Because{Reason: volume.ReasonTerminating, Message: "pod " + p.Name + " is being deleted"}}
	case c == nil:
		return Plan{Create: fromTemplate(p, f.Volume, name), Because: volume.Because{
			Reason:  volume.ReasonClaimMade,
			Message: fmt.Sprintf("claim %s is created for volume %s of pod %s", name, f.Volume.Name, p.Name),
		}}
	case Stranger(p, c) && OwnerOf(c) != nil && OwnerOf(c).Name == p.Name:
		return Plan{Because: volume.Sayf(volume.ReasonTerminating, volume.Controller("ephemeral"),
			"claim %s of an earlier pod %s has to be deleted first", name, p.Name)}
	case Stranger(p, c):
		return Plan{Refused: true, Because: volume.Sayf(volume.ReasonClaimMisbound, volume.User(),
			"claim %s already exists and was not created for volume %s of this Pod", name, f.Volume.Name)}
	}
	return Plan{Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "claim " + name + " is there"}}
}

func fromTemplate(p *corev1.Pod, v *corev1.Volume, name string) *corev1.PersistentVolumeClaim {
	t := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: name, Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: t.Spec,
	}
}

// Failed returns the reason for a claim that could not be created.
func Failed(name, cause string) volume.Because {
	return volume.Say(volume.ReasonFailedClaim, volume.User(), "claim "+name+" cannot be created: "+cause)
}

// OwnerOf returns the owner reference of a claim to the Pod that it was created for, or nil.
func OwnerOf(c *corev1.PersistentVolumeClaim) *metav1.OwnerReference {
	if o := metav1.GetControllerOf(c); o != nil && o.APIVersion == "v1" && o.Kind == "Pod" {
		return o
	}
	return nil
}

// Left decides whether a claim is deleted because its Pod is gone. p is the Pod that has the name
// now, or nil.
func Left(c *corev1.PersistentVolumeClaim, p *corev1.Pod) (remove bool, why volume.Because) {
	owner := OwnerOf(c)
	switch {
	case owner == nil:
		return false, volume.Because{Reason: volume.ReasonNothingToDo, Message: "claim " + c.Name + " is not part of a pod"}
	case len(c.OwnerReferences) > 1:
		return false, volume.Because{Reason: volume.ReasonNothingToDo, Message: "claim " + c.Name + " also has another owner"}
	case c.DeletionTimestamp != nil:
		return false, volume.Because{Reason: volume.ReasonTerminating, Message: "claim " + c.Name + " is being deleted"}
	case p != nil && p.UID == owner.UID:
		return false, volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "claim " + c.Name + " is deleted with pod " + p.Name,
		}
	}
	return true, volume.Because{
		Reason:  volume.ReasonOwnerGone,
		Message: fmt.Sprintf("claim %s was created for pod %s, which is gone", c.Name, owner.Name),
	}
}
