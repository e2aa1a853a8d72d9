// Package gathertest has objects for tests of answers.
package gathertest

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// Town is a cluster of many claims, two of which matter: data, which is bound, and
// late, which waits.
func Town() *fake.Clientset {
	const driver = "d.example.com"
	objects := []runtime.Object{
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver},
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
	}
	for _, name := range []string{"n1", "n2"} {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}},
		}})
	}
	for _, name := range []string{"late", "data", "c1", "c2", "c3"} {
		objects = append(objects, resident(name, driver)...)
	}
	return clientset.New(objects...)
}

// resident returns a claim, and unless it is late, its volume, its Pod on node n1 and
// its attachment there, which only that of data does not have.
func resident(name, driver string) []runtime.Object {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name,
		UID: types.UID("uid-" + name),
	}}
	c.Spec.StorageClassName, c.Status.Phase = ptr.To("fast"), corev1.ClaimPending
	if name == "late" {
		return []runtime.Object{c}
	}
	c.Spec.VolumeName, c.Status.Phase = "pv-"+name, corev1.ClaimBound
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: c.UID}
	v.Status.Phase = corev1.VolumeBound
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + name}}
	p.Spec.NodeName = "n1"
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
	if name == "data" {
		return []runtime.Object{c, v, p}
	}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-" + name}}
	a.Spec = storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "n1",
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
	}
	a.Status.Attached = true
	return []runtime.Object{c, v, p, a}
}
