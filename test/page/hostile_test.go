package page

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// hostile returns objects with a text in each field that other users may write, even where an API server would refuse
// it.
func hostile(i int, text string) []runtime.Object {
	uid := types.UID(fmt.Sprint("hostile-", i))
	meta := func(ns string) metav1.ObjectMeta {
		at := noon(i)
		return metav1.ObjectMeta{
			Namespace: ns, Name: text, UID: uid, CreationTimestamp: at, Labels: map[string]string{text: text},
			Annotations: map[string]string{text: text, volume.AnnMountAt: text, volume.AnnBindCompleted: text},
			Finalizers:  []string{text}, OwnerReferences: []metav1.OwnerReference{{Kind: text, Name: text}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: text, Subresource: text, Time: &at}},
		}
	}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta(text)}
	c.Spec.StorageClassName, c.Spec.VolumeName = &text, text
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(text)}
	c.Status.Phase = corev1.PersistentVolumeClaimPhase(text)
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
		Type: corev1.PersistentVolumeClaimConditionType(text), Reason: text, Message: text, LastTransitionTime: noon(i),
	}}
	v := &corev1.PersistentVolume{ObjectMeta: meta("")}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: text, VolumeHandle: text, VolumeAttributes: map[string]string{text: text}, FSType: text,
	}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: text, Name: text, UID: uid}
	v.Spec.StorageClassName, v.Status.Phase = text, corev1.PersistentVolumePhase(text)
	v.Status.Message, v.Status.Reason = text, text
	p := &corev1.Pod{ObjectMeta: meta(text)}
	p.Spec.NodeName = text
	p.Spec.Volumes = []corev1.Volume{{Name: text}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: text}
	p.Status.Conditions = []corev1.PodCondition{{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionFalse, Reason: text, Message: text,
		LastTransitionTime: noon(i),
	}}
	n := &corev1.Node{ObjectMeta: meta("")}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: text, Message: text, LastTransitionTime: noon(i),
	}}
	a := &storagev1.VolumeAttachment{ObjectMeta: meta("")}
	a.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: text, NodeName: text, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &text},
	}
	a.Status.AttachError = &storagev1.VolumeError{Time: noon(i), Message: text}
	e := warning(c, volume.Reason(text), text)
	e.Name, e.Source.Component = fmt.Sprint("hostile-", i), text
	return []runtime.Object{
		c, v, p, n, a, e, &storagev1.StorageClass{ObjectMeta: meta(""), Provisioner: text},
		&storagev1.CSIDriver{ObjectMeta: meta("")},
		&storagev1.CSINode{ObjectMeta: meta(""), Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: text, NodeID: text}},
		}},
	}
}
