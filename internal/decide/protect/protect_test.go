package protect

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

var update = flag.Bool("update", false, "write the decisions into the tables")

func TestProtection(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", DeletionTimestamp: &metav1.Time{}, Finalizers: []string{volume.FinalizerClaimProtection, volume.FinalizerVolumeProtection}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta}
	pod := func(node string, phase corev1.PodPhase) []*corev1.Pod {
		return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}}
	}
	var out strings.Builder
	tell := func(argues string, freed bool, why volume.Because) {
		fmt.Fprintf(&out, "# %s\nfreed=%v\n%s: %s -> %s\n\n", argues, freed, why.Reason, why.Message, why.Next)
	}
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		users  []*corev1.Pod
	}{
		{"a claim that is not deleted stays protected", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, nil},
		{"nobody uses the claim", claim, nil},
		{"a Pod with a node uses it", claim, pod("n1", corev1.PodRunning)},
		{"a Pod that has ended may still have it mounted", claim, pod("n1", corev1.PodSucceeded)},
		{"a Pod without a node has never had it", claim, pod("", corev1.PodPending)},
	} {
		free, why := Claim(c.claim, c.users)
		tell(c.argues, free != nil, why)
	}
	for _, c := range []struct {
		argues string
		phase  corev1.PersistentVolumePhase
	}{
		{"a bound volume stays", corev1.VolumeBound},
		{"a released one may go", corev1.VolumeReleased},
	} {
		free, why := Volume(&corev1.PersistentVolume{ObjectMeta: meta, Status: corev1.PersistentVolumeStatus{Phase: c.phase}})
		tell(c.argues, free != nil, why)
	}
	const name = "testdata/protection.txt"
	if *update {
		if err := os.WriteFile(name, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}
