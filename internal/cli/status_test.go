package cli

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/volume"
)

// TestStatusReportsRestore: status reports a restore until it is accepted.
func TestStatusReportsRestore(t *testing.T) {
	client := fake.NewClientset()
	var out bytes.Buffer
	printRestored(t.Context(), &out, client)
	if out.Len() > 0 {
		t.Errorf("without a restore: %q", out.String())
	}
	said := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
		Data:       map[string]string{volume.RestoredMade: "yesterday"},
	}
	if err := client.Tracker().Add(said); err != nil {
		t.Fatal(err)
	}
	printRestored(t.Context(), &out, client)
	if want := "\nRestored from a backup of \"yesterday\": nothing is unmounted, detached or deleted until 'volplane " +
		"restore --accept'\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestStatusNamesUnhealthyPods: status counts the Pods with unhealthy volumes and names
// one of them.
func TestStatusNamesUnhealthyPods(t *testing.T) {
	pod := func(name string, status corev1.ConditionStatus) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue},
			{Type: volume.ConditionVolumesHealthy, Status: status},
		}
		return p
	}
	for want, pods := range map[string][]*corev1.Pod{
		"": {pod("a", corev1.ConditionTrue)},
		"\nPods with unhealthy volumes: 1. See: volplane why pod/b -n ns\n": {
			pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionFalse),
		},
	} {
		r := newReading(nil)
		r.Pods = pods
		var out bytes.Buffer
		if r.printUnhealthyPods(&out); out.String() != want {
			t.Errorf("%q; want %q", out.String(), want)
		}
	}
}
