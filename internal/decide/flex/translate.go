package flex

import (
	corev1 "k8s.io/api/core/v1"
)

// SourceOf returns the CSI source that stands for a FlexVolume, for which the
// bridge is the driver: the volume's name is the handle, because drivers and
// backends know the volume by it, and the options are the attributes. It is nil
// for a volume of another kind, and for one of which no CSI driver can have the
// driver's name.
func SourceOf(v *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
	flex := v.Spec.FlexVolume
	if flex == nil {
		return nil
	}
	name, ok := csiNameOf(flex.Driver)
	if !ok {
		return nil
	}
	return &corev1.CSIPersistentVolumeSource{
		Driver: name, VolumeHandle: v.Name, FSType: flex.FSType, ReadOnly: flex.ReadOnly, VolumeAttributes: flex.Options,
		NodePublishSecretRef: secretOf(flex.SecretRef, v.Spec.ClaimRef),
	}
}

// secretOf returns the Secret of a volume: where no namespace is named it is
// that of the claim, which CSI has no word for.
func secretOf(ref *corev1.SecretReference, claim *corev1.ObjectReference) *corev1.SecretReference {
	if ref == nil || ref.Namespace != "" || claim == nil {
		return ref
	}
	return &corev1.SecretReference{Name: ref.Name, Namespace: claim.Namespace}
}

// InlineOf is SourceOf for a volume that a Pod names itself.
func InlineOf(v *corev1.Volume) *corev1.CSIVolumeSource {
	flex := v.FlexVolume
	if flex == nil {
		return nil
	}
	name, ok := csiNameOf(flex.Driver)
	if !ok {
		return nil
	}
	out := &corev1.CSIVolumeSource{Driver: name, VolumeAttributes: flex.Options, NodePublishSecretRef: flex.SecretRef}
	if flex.ReadOnly {
		out.ReadOnly = &flex.ReadOnly
	}
	if flex.FSType != "" {
		out.FSType = &flex.FSType
	}
	return out
}

func csiNameOf(driver string) (string, bool) {
	n, err := ParseName(driver)
	if err != nil {
		return "", false
	}
	name, err := n.CSI()
	return name, err == nil
}
