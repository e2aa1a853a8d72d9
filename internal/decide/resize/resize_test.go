package resize

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "write the decisions into the tables")

func claim(want, have string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u1"},
		Spec:       corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(want)}}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(have)}},
	}
}

func pv(size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}, ClaimRef: &corev1.ObjectReference{UID: "u1"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com"}},
	}}
}

func TestClaims(t *testing.T) {
	now, ten := metav1.Time{}, resource.MustParse("10Gi")
	begun := Begun(claim("10Gi", "5Gi"), ten, now)
	changed := Begun(claim("10Gi", "5Gi"), resource.MustParse("8Gi"), now)
	unbound := claim("10Gi", "5Gi")
	unbound.Status.Phase = corev1.ClaimPending
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"a larger request begins a resize", Facts{Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi"), Ours: true, Expands: true, NodeExpands: true}},
		{"what is recorded is carried out, also after a crash", Facts{Claim: begun, Volume: pv("5Gi"), Ours: true, Expands: true}},
		{"a request that changed meanwhile is recorded anew", Facts{Claim: changed, Volume: pv("5Gi"), Ours: true, Expands: true}},
		{"a stop between the volume's and the claim's write is made good", Facts{Claim: begun, Volume: pv("10Gi"), Ours: true, Expands: true, NodeExpands: true}},
		{"then it is the node's turn", Facts{Claim: Handed(begun, ten, now), Volume: pv("10Gi"), Ours: true, Expands: true}},
		{"a claim that has what it wants is left alone", Facts{Claim: Finished(begun, ten), Volume: pv("10Gi"), Ours: true, Expands: true}},
		{"a driver that cannot grow volumes says so", Facts{Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi"), Ours: true}},
		{"a driver that is not here is waited for", Facts{Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi")}},
		{"a claim that is not bound has nothing to grow", Facts{Claim: unbound, Volume: pv("5Gi"), Ours: true, Expands: true}},
		{"nor has one whose volume is another's", Facts{Claim: claim("10Gi", "5Gi"), Ours: true, Expands: true}},
		{"a refused size may be asked for again", Facts{Claim: Infeasible(begun, ten, "no", now), Volume: pv("5Gi"), Ours: true, Expands: true}},
	} {
		p := Claim(c.facts)
		step := map[Step]string{Nothing: "nothing", Begin: "begin", Expand: "expand", Hand: "hand"}[p.Step]
		var conditions []corev1.PersistentVolumeClaimConditionType
		for _, k := range c.facts.Claim.Status.Conditions {
			conditions = append(conditions, k.Type)
		}
		fmt.Fprintf(&out, "# %s\nclaim state=%q conditions=%v\n----\n%s %s\n%s: %s -> %s\n\n", c.argues, c.facts.Claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage],
			conditions, step, p.Size.String(), p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	why := Grown(claim("10Gi", "10Gi"))
	fmt.Fprintf(&out, "# the end is told\n%s: %s\n", why.Reason, why.Message)
	const name = "testdata/claims.txt"
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
