package page

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// BenchmarkOverview renders the first page of a plane with 10,000 mounted claims.
func BenchmarkOverview(b *testing.B) {
	o := state.Objects{Now: time.Now()}
	for i := range 10_000 {
		name := fmt.Sprint("many-", i)
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name),
		}}
		c.Spec.StorageClassName, c.Spec.VolumeName, c.Status.Phase = ptr.To("fast"), name, corev1.ClaimBound
		c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: name}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: c.UID}
		v.Status.Phase = corev1.VolumeBound
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.NodeName = "n1"
		p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
		p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
		p.Status.Conditions = []corev1.PodCondition{{
			Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue, Message: "v=/mnt/" + name,
			LastTransitionTime: metav1.Now(),
		}}
		o.Claims, o.Volumes, o.Pods = append(o.Claims, c), append(o.Volumes, v), append(o.Pods, p)
	}
	ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	o.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: ready}}}
	o.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: "d.example.com", NodeID: "n1"}},
	}}}
	o.Drivers = []*storagev1.CSIDriver{{
		ObjectMeta: metav1.ObjectMeta{Name: "d.example.com"}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}}
	o.Classes = []*storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "d.example.com"}}
	plane := planeOf(clientset.New())
	plane.Objects = func(context.Context) (state.Objects, error) { return o, nil }
	printed := newRenderer(plane)
	for b.Loop() {
		s, err := plane.see(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		t, _ := targetOf("")
		if _, err := printed.render(b.Context(), s, t); err != nil {
			b.Fatal(err)
		}
	}
}
