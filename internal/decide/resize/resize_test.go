package resize

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func claim(want, have string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "u1"},
		Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(want)},
		}},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(have)},
		},
	}
}

func pv(size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		ClaimRef: &corev1.ObjectReference{UID: "u1"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com"},
		},
	}}
}

// marked is a volume that tells that it had 5Gi before its resize.
func marked(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	v.Annotations = map[string]string{volume.AnnPreResizeCapacity: "5Gi"}
	return v
}

// saying is a claim with one more condition.
func saying(
	c *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType, message string,
) *corev1.PersistentVolumeClaim {
	c.Status.Conditions = append(c.Status.Conditions,
		corev1.PersistentVolumeClaimCondition{Type: kind, Status: corev1.ConditionTrue, Message: message})
	return c
}

// over is a claim of which no condition holds any more.
func over(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	for i := range c.Status.Conditions {
		c.Status.Conditions[i].Status = corev1.ConditionFalse
	}
	return c
}

// grows are the facts of a claim whose driver is here and expands volumes.
func grows(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) Facts {
	return Facts{Claim: claim, Volume: v, Reachable: true, Expands: true}
}

func TestClaims(t *testing.T) {
	var out strings.Builder
	for _, c := range append(growing(), troubled()...) {
		fmt.Fprintf(&out, "# %s\n%s", c.argues, claimText(c.facts))
	}
	why := Expanded(claim("10Gi", "10Gi"))
	fmt.Fprintf(&out, "# the end is told\n%s: %s\n", why.Reason, why.Message)
	why = Pending(Facts{Claim: claim("10Gi", "5Gi")})
	fmt.Fprintf(&out, "\n# so is the node's turn\n%s: %s -> %s\n", why.Reason, why.Message, why.Next)
	why = Failed(claim("10Gi", "5Gi"), "d.example.com", volume.Answer{Code: "Internal", Text: "Internal: no"})
	fmt.Fprintf(&out, "\n# and a driver's error\n%s: %s -> %s\n", why.Reason, why.Message, why.Next)
	golden.Equal(t, "testdata/claims.txt", out.String())
}

// claimCase is a claim that may have to grow.
type claimCase struct {
	argues string
	facts  Facts
}

// growing are claims on their way, and those that have nothing to grow.
func growing() []claimCase {
	now, ten := metav1.Time{}, resource.MustParse("10Gi")
	begun := Started(claim("10Gi", "5Gi"), ten, now)
	changed := Started(claim("10Gi", "5Gi"), resource.MustParse("8Gi"), now)
	unbound := claim("10Gi", "5Gi")
	unbound.Status.Phase = corev1.ClaimPending
	lowered := Started(claim("8Gi", "5Gi"), ten, now)
	going := claim("10Gi", "5Gi")
	going.DeletionTimestamp = &now
	others, free, path := pv("5Gi"), pv("5Gi"), pv("5Gi")
	others.Spec.ClaimRef.UID, free.Spec.ClaimRef, path.Spec.CSI = "u2", nil, nil
	return []claimCase{
		{"a larger request begins a resize", Facts{
			Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi"), Reachable: true, Expands: true, NodeExpands: true,
		}},
		{"what is recorded is carried out, also after a crash", grows(begun, pv("5Gi"))},
		{"a request that changed meanwhile waits: the volume may have the other size already", grows(changed, pv("5Gi"))},
		{"unless the driver said that it has not", Facts{
			Claim: changed, Volume: pv("5Gi"), Reachable: true, Expands: true, Refused: true,
		}},
		{"or the volume has it by now", grows(changed, pv("8Gi"))},
		{"a smaller request waits as well", grows(lowered, pv("5Gi"))},
		{"and is begun when the larger one was refused", Facts{
			Claim: lowered, Volume: pv("5Gi"), Reachable: true, Expands: true, Refused: true,
		}},
		{"a claim that is going is left alone", grows(going, pv("5Gi"))},
		{"a stop between the volume's and the claim's write is made good", Facts{
			Claim: begun, Volume: pv("10Gi"), Reachable: true, Expands: true, NodeExpands: true,
		}},
		{"then it is the node's turn", grows(NodePending(begun, ten, now), pv("10Gi"))},
		{"when that is over, the volume need not tell its old size", grows(Finished(begun, ten), marked(pv("10Gi")))},
		{"until then it tells it", grows(NodePending(begun, ten, now), marked(pv("10Gi")))},
		{"also to the next claim, which begins with the old size", grows(claim("5Gi", "5Gi"), marked(pv("10Gi")))},
		{"who does not reach the driver leaves it alone", Facts{Claim: Finished(begun, ten), Volume: marked(pv("10Gi"))}},
		{"a claim that has what it wants is left alone", grows(Finished(begun, ten), pv("10Gi"))},
		{"a driver that cannot expand volumes says so", Facts{
			Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi"),
			Reachable: true,
		}},
		{"a size that no driver can be asked for", grows(claim("1e30", "5Gi"), pv("5Gi"))},
		{"a driver that is not here is waited for", Facts{Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi")}},
		{"a claim that is not bound has nothing to grow", grows(unbound, pv("5Gi"))},
		{"nor has one whose volume is not there", Facts{Claim: claim("10Gi", "5Gi"), Reachable: true, Expands: true}},
		{"or is another claim's", grows(claim("10Gi", "5Gi"), others)},
		{"or nobody's", grows(claim("10Gi", "5Gi"), free)},
		{"or no CSI volume", grows(claim("10Gi", "5Gi"), path)},
	}
}

// troubled are claims that a driver or a node has refused, or is slow with.
func troubled() []claimCase {
	now, ten := metav1.Time{}, resource.MustParse("10Gi")
	begun := Started(claim("10Gi", "5Gi"), ten, now)
	changed := Started(claim("10Gi", "5Gi"), resource.MustParse("8Gi"), now)
	nodeRefused := withState(claim("10Gi", "5Gi"), corev1.PersistentVolumeClaimNodeResizeInfeasible, ten)
	wordless := Infeasible(claim("10Gi", "5Gi"), ten, "", now)
	wordless.Status.Conditions = append(wordless.Status.Conditions,
		corev1.PersistentVolumeClaimCondition{Type: "Other", Message: "of something else"})
	return []claimCase{
		{"a size that cannot be is explained by what was said of it", grows(wordless, pv("5Gi"))},
		{"a size that cannot be is not asked for again at once", grows(Infeasible(begun, ten, "no", now), pv("5Gi"))},
		{"but later", Facts{
			Claim: Infeasible(begun, ten, "no", now), Volume: pv("5Gi"), Reachable: true, Expands: true, Due: true,
		}},
		{"another size is asked for at once", grows(Infeasible(changed, resource.MustParse("8Gi"), "no", now), pv("5Gi"))},
		{"a node that cannot grow the filesystem is left alone for a while", Facts{
			Claim: nodeRefused, Volume: pv("10Gi"), Reachable: true, Expands: true, NodeExpands: true,
		}},
		{"and gets another chance", Facts{
			Claim: nodeRefused, Volume: pv("10Gi"), Reachable: true, Expands: true, NodeExpands: true, Due: true,
		}},
		{"a driver whose node service does it all", Facts{
			Claim: claim("10Gi", "5Gi"), Volume: pv("5Gi"), Reachable: true, NodeExpands: true,
		}},
		{"a node that waits for whoever mounts it", Facts{
			Claim: NodePending(begun, ten, now), Volume: pv("10Gi"), Reachable: true, Expands: true, Unused: true,
		}},
		{"a node that is known", Facts{
			Claim: NodePending(begun, ten, now), Volume: pv("10Gi"), Reachable: true, Expands: true, Node: "n1",
		}},
		{"a filesystem that has not grown yet", Facts{
			Claim:  saying(NodePending(begun, ten, now), corev1.PersistentVolumeClaimNodeResizeError, "Internal: no"),
			Volume: pv("10Gi"), Reachable: true, Expands: true, Node: "n1",
		}},
		{"a resizer that says by a condition alone that it is the node's turn", Facts{
			Claim: saying(claim("10Gi", "5Gi"), corev1.PersistentVolumeClaimFileSystemResizePending, ""), Volume: pv("10Gi"),
			Reachable: true, Expands: true, Node: "n1",
		}},
		{"that condition of an earlier growth", Facts{
			Claim: saying(claim("10Gi", "5Gi"), corev1.PersistentVolumeClaimFileSystemResizePending, ""), Volume: pv("5Gi"),
			Reachable: true, Expands: true, Node: "n1",
		}},
		{"a condition that is over", Facts{
			Claim:  over(saying(claim("10Gi", "5Gi"), corev1.PersistentVolumeClaimFileSystemResizePending, "")),
			Volume: pv("10Gi"), Reachable: true, Expands: true, Node: "n1",
		}},
		{
			"an error of a claim that has what it wants",
			grows(saying(claim("5Gi", "5Gi"), corev1.PersistentVolumeClaimControllerResizeError, "old"), pv("5Gi")),
		},
		{"a final no is told once and does not end the resize", Facts{
			Claim: Refused(begun, "no", now), Volume: pv("5Gi"), Reachable: true, Expands: true, Refused: true,
		}},
	}
}

// claimText is what is known of a claim, and what is decided about it.
func claimText(f Facts) string {
	p, told, claim := Claim(f), ConditionOf(f), f.Claim
	step := map[Step]string{Nothing: "nothing", Begin: "begin", Expand: "expand", Hand: "hand", Settle: "settle"}[p.Step]
	var conditions []corev1.PersistentVolumeClaimConditionType
	for _, k := range claim.Status.Conditions {
		conditions = append(conditions, k.Type)
	}
	s := claim.Status
	return fmt.Sprintf("claim wants=%s has=%s allocated=%s state=%q conditions=%v\n----\n",
		claim.Spec.Resources.Requests.Storage(), s.Capacity.Storage(), s.AllocatedResources.Storage(),
		s.AllocatedResourceStatuses[corev1.ResourceStorage], conditions) +
		fmt.Sprintf("%s %s tell=%v\n%s: %s -> %s\n", step, p.Size.String(), p.Event, p.Because.Reason, p.Because.Message,
			p.Because.Next) +
		fmt.Sprintf("told stuck=%v %s: %s -> %s\n\n", told.Stuck, told.Reason, told.Message, told.Next)
}

func TestClaimsStatus(t *testing.T) {
	now, ten := metav1.Time{}, resource.MustParse("10Gi")
	c := claim("10Gi", "5Gi")
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Other"}}
	begun := Started(c, ten, now)
	refused := Refused(begun, "no", now)
	if again := Refused(refused, "no", now); again != nil {
		t.Error("the same refusal is written twice")
	}
	if other := Refused(refused, "never", now); other == nil {
		t.Error("another refusal is not written")
	}
	done := Finished(NodePending(refused, ten, now), ten)
	if len(done.Status.Conditions) != 1 || len(done.Status.AllocatedResourceStatuses) > 0 ||
		done.Status.Capacity.Storage().Cmp(ten) != 0 {
		t.Errorf("a finished claim has %+v", done.Status)
	}
	if len(c.Status.Conditions) != 1 || c.Status.AllocatedResources != nil {
		t.Errorf("the claim that was asked about changed: %+v", c.Status)
	}
	if bare := Finished(&corev1.PersistentVolumeClaim{}, ten); bare.Status.Capacity.Storage().Cmp(ten) != 0 {
		t.Error("a claim without a capacity gets none")
	}
}

// TestConditions: a resize has one condition at a time, whole, beside those of
// others.
func TestConditions(t *testing.T) {
	then, ten := metav1.Unix(7, 0), resource.MustParse("10Gi")
	other := corev1.PersistentVolumeClaimCondition{Type: "Other", Message: "no"}
	c := claim("10Gi", "5Gi")
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
		other, {Type: corev1.PersistentVolumeClaimNodeResizeError, Message: "no"},
	}
	for _, x := range []struct {
		got     *corev1.PersistentVolumeClaim
		typ     corev1.PersistentVolumeClaimConditionType
		message string
	}{
		{Started(c, ten, then), corev1.PersistentVolumeClaimResizing, ""},
		{Refused(c, "no", then), corev1.PersistentVolumeClaimControllerResizeError, "no"},
		{Infeasible(c, ten, "never", then), corev1.PersistentVolumeClaimControllerResizeError, "never"},
	} {
		want := []corev1.PersistentVolumeClaimCondition{
			other, {Type: x.typ, Status: corev1.ConditionTrue, LastTransitionTime: then, Message: x.message},
		}
		if diff := cmp.Diff(want, x.got.Status.Conditions); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.typ, diff)
		}
	}
}
