package status

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestStatusReportsRestore: status reports a restore until it is accepted.
func TestStatusReportsRestore(t *testing.T) {
	client := clientset.New()
	var out bytes.Buffer
	shell.PrintRestored(t.Context(), &out, client)
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
	shell.PrintRestored(t.Context(), &out, client)
	if want := "\nNothing is unmounted, detached or deleted until 'volplane restore --accept': the API was restored " +
		"from a backup of \"yesterday\"\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestStatusNamesWhatIsUnhealthy: status counts the Pods and the claims with unhealthy volumes and names one of each,
// and reports each storage that is unhealthy.
func TestStatusNamesWhatIsUnhealthy(t *testing.T) {
	pod := func(name string, status corev1.ConditionStatus, told ...corev1.VolumeHealthCondition) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue},
			{Type: volume.ConditionVolumesHealthy, Status: status},
		}
		p.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: "v", HealthConditions: told}}
		return p
	}
	ill := corev1.VolumeHealthCondition{Status: corev1.VolumeHealthDegraded, Reason: "OnePath"}
	ended := pod("e", corev1.ConditionFalse)
	ended.Status.Phase = corev1.PodSucceeded
	claim := func(name string, told ...corev1.VolumeHealthCondition) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		c.Status.HealthStatus = &corev1.VolumeHealthStatus{HealthConditions: told}
		return c
	}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "d.example"}}
	node.Status.StorageHealth = []storagev1.StorageHealth{
		{Name: "d.example", HealthConditions: []storagev1.StorageHealthCondition{
			{Status: storagev1.StorageDegraded, Reason: "Slow", Message: "\x1b[2J"},
		}},
		{Name: "gone.example", HealthConditions: []storagev1.StorageHealthCondition{{Status: storagev1.StorageDegraded}}},
	}
	for want, change := range map[string]func(*gather.Facts){
		"": func(r *gather.Facts) {
			r.Pods, r.Claims = []*corev1.Pod{pod("a", corev1.ConditionTrue), ended}, []*corev1.PersistentVolumeClaim{claim("c")}
		},
		"Pods with unhealthy volumes: 2. See: volplane why pod/b -n ns\n\n": func(r *gather.Facts) {
			r.Pods = []*corev1.Pod{
				pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionFalse), pod("k", corev1.ConditionTrue, ill),
			}
		},
		"Claims with unhealthy volumes: 1. See: volplane why pvc/d -n ns\n\n": func(r *gather.Facts) {
			r.Claims = []*corev1.PersistentVolumeClaim{claim("c"), claim("d", ill)}
		},
		"driver d.example says of its storage, seen from node n1: StorageDegraded (Slow): [2J. See: volplane why " +
			"node/n1\n\n": func(r *gather.Facts) { r.CSINodes = []*storagev1.CSINode{node} },
	} {
		r := shell.Facts(nil)
		change(r)
		var out bytes.Buffer
		if printUnhealthy(&out, survey.Summarize(r.Objects)); out.String() != want {
			t.Errorf("%q; want %q", out.String(), want)
		}
	}
}

// TestStatusNamesUnresolvedIntents: status counts volumes whose creation has no known
// outcome for some time, and names the oldest.
func TestStatusNamesUnresolvedIntents(t *testing.T) {
	const in = `{"driver":"d.example.com","name":"pvc-%[1]s","claim":{"namespace":"ns","name":"c","uid":"%[1]s"},"begun":"%[2]s"}`
	log := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l-1", Labels: map[string]string{volume.LabelIntents: "l"}},
	}
	log.Data = map[string]string{
		"u1": fmt.Sprintf(in, "u1", "2026-01-02T03:04:06Z"), "u2": fmt.Sprintf(in, "u2", "2026-01-02T03:04:05Z"), "bad": "{",
	}
	for _, c := range []struct {
		log  *corev1.ConfigMap
		want string
	}{
		{
			log,
			"unresolved   2, the first for claim ns/c at driver d.example.com since 2026-01-02 03:04:05 UTC. " +
				"See: volplane why -A\n",
		},
		{&corev1.ConfigMap{}, ""},
	} {
		var out strings.Builder
		r := shell.Facts(clientset.New(c.log))
		err := r.Overview(t.Context())
		if printUnresolved(&out, survey.Summarize(r.Objects).Unresolved); err != nil || out.String() != c.want {
			t.Errorf("got %q, %v, want %q", out.String(), err, c.want)
		}
	}
}
