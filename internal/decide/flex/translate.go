package flex

import (
	corev1 "k8s.io/api/core/v1"
)

// SourceOf returns the CSI source for a FlexVolume, whose driver is the bridge: the handle is the
// volume's name, because drivers and backends know the volume by it, and the attributes are the
// options. It is nil for other volumes, and for a driver whose name has no CSI form.
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

// secretOf returns the Secret of a volume. Without a namespace it is in the claim's namespace,
// which CSI cannot express.
func secretOf(ref *corev1.SecretReference, claim *corev1.ObjectReference) *corev1.SecretReference {
	if ref == nil || ref.Namespace != "" || claim == nil {
		return ref
	}
	return &corev1.SecretReference{Name: ref.Name, Namespace: claim.Namespace}
}

// InlineOf is SourceOf for an inline volume of a Pod.
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
