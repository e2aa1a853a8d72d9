package gather

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestUsesOfAPod: each claim of a Pod has its own path, from the node agent's condition; a requested path is shown
// before that, and a Pod that has no node or has finished uses nothing.
func TestUsesOfAPod(t *testing.T) {
	claim := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	pod.Spec.NodeName = "n"
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "a", VolumeSource: claim("one")},
		{Name: "b", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "c", VolumeSource: claim("two")},
	}
	expect := func(what, want string) {
		t.Helper()
		got := ""
		for _, m := range UsesOf(pod) {
			got += fmt.Sprintf("%s/%s %s %q %t;", m.Namespace, m.Claim, m.Node, m.Path, m.Since != nil)
		}
		if got != want {
			t.Errorf("%s: %s\nwant %s", what, got, want)
		}
	}
	expect("it waits", `ns/one n "" false;ns/two n "" false;`)
	told := corev1.PodCondition{
		Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue, Message: "a=/x/a, c=/x/c",
		LastTransitionTime: metav1.NewTime(time.Unix(1, 0)),
	}
	pod.Status.Conditions = []corev1.PodCondition{told}
	expect("it is mounted", `ns/one n "/x/a" true;ns/two n "/x/c" true;`)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	pod.Annotations = map[string]string{volume.AnnMountAt: "/srv"}
	expect("a path was asked for", `ns/one n "/srv" false;ns/two n "/srv" false;`)
	pod.Annotations[volume.AnnMountFor] = "/lazy"
	expect("an automount waits there", `ns/one n "/lazy" false;ns/two n "/lazy" false;`)
	if at := UsesOf(pod)[0].At; at != "/srv" {
		t.Errorf("the node agent mounts at %s", at)
	}
	pod.Status.Phase = corev1.PodSucceeded
	expect("it has ended", "")
	pod.Status.Phase, pod.Spec.NodeName = "", ""
	expect("it has no node", "")
}
