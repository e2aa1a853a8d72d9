package bind

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Match returns the best volume for a claim, or nil. Volumes that refer to the claim are better than
// others, then those with fewer access modes, then smaller ones, and then the first by name. late
// says that the claim waits for its first consumer: then only a volume that refers to it matches.
func Match(
	claim *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume, late bool,
) *corev1.PersistentVolume {
	selector := selectorOf(claim)
	class, _ := ClassOf(claim)
	free := func(v *corev1.PersistentVolume) bool {
		return !late && IsFree(v) && selector.Matches(labels.Set(v.Labels)) && VolumeClassOf(v) == class
	}
	var best *corev1.PersistentVolume
	for _, v := range volumes {
		usable := fits(claim, v) && offers(v, claim.Spec.AccessModes) && (v.Spec.ClaimRef != nil || free(v))
		if usable && (best == nil || better(v, best)) {
			best = v
		}
	}
	return best
}

// selectorOf returns the claim's selector. An invalid selector selects nothing.
func selectorOf(claim *corev1.PersistentVolumeClaim) labels.Selector {
	if claim.Spec.Selector == nil {
		return labels.Everything()
	}
	s, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

// fits says whether a volume meets the requirements that hold even if it refers to the claim.
func fits(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return (v.Spec.ClaimRef == nil || RefersTo(v.Spec.ClaimRef, claim)) &&
		v.Spec.Capacity.Storage().Cmp(*claim.Spec.Resources.Requests.Storage()) >= 0 &&
		mode(v.Spec.VolumeMode) == mode(claim.Spec.VolumeMode) &&
		attributes(v.Spec.VolumeAttributesClassName) == attributes(claim.Spec.VolumeAttributesClassName) &&
		v.DeletionTimestamp == nil
}

// Mismatch returns why a volume that the claim names cannot be bound to it, or "".
func Mismatch(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) string {
	class, _ := ClassOf(claim)
	switch {
	case v.DeletionTimestamp != nil:
		return "it is being deleted"
	case v.Spec.Capacity.Storage().Cmp(*claim.Spec.Resources.Requests.Storage()) < 0:
		return "it has " + v.Spec.Capacity.Storage().String() + ", the claim requests " +
			claim.Spec.Resources.Requests.Storage().String()
	case VolumeClassOf(v) != class:
		return "its class is \"" + VolumeClassOf(v) + "\", the claim's is \"" + class + "\""
	case attributes(v.Spec.VolumeAttributesClassName) != attributes(claim.Spec.VolumeAttributesClassName):
		return "its volume attributes class is a different one"
	case mode(v.Spec.VolumeMode) != mode(claim.Spec.VolumeMode):
		return "its volume mode is " + string(mode(v.Spec.VolumeMode)) + ", the claim's is " +
			string(mode(claim.Spec.VolumeMode))
	case !offers(v, claim.Spec.AccessModes):
		return "it does not offer the claim's access modes"
	}
	return ""
}

func better(a, b *corev1.PersistentVolume) bool {
	if reserved := a.Spec.ClaimRef != nil; reserved != (b.Spec.ClaimRef != nil) {
		return reserved
	}
	return cmp.Or(cmp.Compare(len(a.Spec.AccessModes), len(b.Spec.AccessModes)), bySize(a, b)) < 0
}

func offers(v *corev1.PersistentVolume, modes []corev1.PersistentVolumeAccessMode) bool {
	for _, m := range modes {
		if !slices.Contains(v.Spec.AccessModes, m) {
			return false
		}
	}
	return true
}

// RefersTo says whether a volume's reference is to a claim: by name, and by UID if it has one.
func RefersTo(ref *corev1.ObjectReference, claim *corev1.PersistentVolumeClaim) bool {
	return ref.Namespace == claim.Namespace && ref.Name == claim.Name && (ref.UID == "" || ref.UID == claim.UID)
}

func mode(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if m == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *m
}

func attributes(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}
