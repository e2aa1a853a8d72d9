package kube

import (
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// TestRepeatedEventHasTheNewestTry: an event that is repeated has the newest attempt and the next try, in the request
// that counts it.
func TestRepeatedEventHasTheNewestTry(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
	client := fake.NewClientset(claim)
	events := NewNodeRecorder(t.Context(), client, "test", "n1")
	because := volume.Because{Reason: volume.ReasonProvisioningFailed, Message: "full", Next: volume.Driver("d")}
	for n := 1; n <= 3; n++ {
		events.WarnWith(claim, because, map[string]string{
			volume.AnnAttempt: fmt.Sprint(n), volume.AnnNextTry: fmt.Sprint("after ", n),
		})
	}
	testkit.Eventually(t, time.Minute, func() string {
		list, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d events, %v", len(list.Items), err)
		}
		e := list.Items[0]
		if want := map[string]string{
			volume.AnnNext: "d", volume.AnnAttempt: "3", volume.AnnNextTry: "after 3",
		}; e.Source != (corev1.EventSource{Component: "volplane.dev/test", Host: "n1"}) || e.Count != 3 ||
			!maps.Equal(e.Annotations, want) {
			return fmt.Sprintf("the event is %d times, %v", e.Count, e.Annotations)
		}
		return ""
	})
	writes := 0
	for _, a := range client.Actions() {
		if a.GetVerb() != "list" {
			writes++
		}
	}
	if writes != 3 {
		t.Errorf("%d requests for three failures", writes)
	}
}
