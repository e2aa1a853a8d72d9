package bind

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

func user(name, node string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Spec.NodeName = node
	p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
	p.Spec.Volumes[0].PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}
	for _, f := range change {
		f(p)
	}
	return p
}

// TestClaimFacts: what a decision about a claim looks at is what is around it, and nothing
// of other claims.
func TestClaimFacts(t *testing.T) {
	fast, named, kept := class(true), pv("pv", "5Gi"), pv("kept", "5Gi", refers("ns", "data", ""))
	fast.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	view := cluster.Lists{
		Classes: []*storagev1.StorageClass{fast},
		Volumes: []*corev1.PersistentVolume{kept, named, pv("taken", "5Gi", refers("ns", "other", ""))},
		Pods: []*corev1.Pod{
			user("a", ""), user("b", "n1"), user("c", "n1", ended), user("d", "", ended),
			user("e", "", func(p *corev1.Pod) { p.Namespace = "other" }),
		},
	}.View()
	unbound, wants, free := claim(), claim(wantsPV), claim(noClass)
	for _, c := range []struct {
		argues string
		claim  *corev1.PersistentVolumeClaim
		want   ClaimFacts
	}{
		{"a claim without a volume has candidates and consumers", unbound, ClaimFacts{
			Claim: unbound, Class: fast, Default: fast, Candidates: []*corev1.PersistentVolume{kept},
			Consumers: []string{"a", "d"}, Assigned: []string{"b"},
		}},
		{"one that names a volume has that one", wants, ClaimFacts{Claim: wants, Class: fast, Default: fast, Volume: named}},
		{"no class is none, whatever the default", free, ClaimFacts{
			Claim: free, Default: fast, Candidates: []*corev1.PersistentVolume{kept}, Consumers: []string{"a", "d"},
			Assigned: []string{"b"},
		}},
	} {
		if diff := cmp.Diff(c.want, ClaimFactsOf(view, c.claim)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.argues, diff)
		}
	}
}

// TestTakesFree: a free volume goes to a claim that has none and does not wait.
func TestTakesFree(t *testing.T) {
	for _, c := range []struct {
		facts ClaimFacts
		want  bool
	}{
		{ClaimFacts{Claim: claim(), Class: class(false)}, true},
		{ClaimFacts{Claim: claim()}, true},
		{ClaimFacts{Claim: claim(), Class: class(true)}, false},
		{ClaimFacts{Claim: claim(wantsPV), Class: class(false)}, false},
		{ClaimFacts{Claim: claim(completed), Class: class(false)}, false},
	} {
		if got := c.facts.TakesFree(); got != c.want {
			t.Errorf("%v, class %v: %t", c.facts.Claim.Annotations, c.facts.Class, got)
		}
	}
}

// TestVolumeFacts: the claim of a volume is the one of its name and UID; another one of
// the name is its namesake.
func TestVolumeFacts(t *testing.T) {
	mine := claim()
	view := cluster.Lists{Claims: []*corev1.PersistentVolumeClaim{mine}}.View()
	for _, c := range []struct {
		argues          string
		volume          *corev1.PersistentVolume
		claim, namesake *corev1.PersistentVolumeClaim
	}{
		{"no reference", pv("pv", "5Gi"), nil, nil},
		{"one without a UID", pv("pv", "5Gi", refers("ns", "data", "")), nil, nil},
		{"one to a claim that is gone", pv("pv", "5Gi", refers("ns", "gone", "u1")), nil, nil},
		{"one to the claim", pv("pv", "5Gi", refers("ns", "data", "u1")), mine, nil},
		{"one to an earlier claim of the name", pv("pv", "5Gi", refers("ns", "data", "u0")), nil, mine},
	} {
		f := VolumeFactsOf(view, c.volume)
		if f.Volume != c.volume || f.Claim != c.claim || f.Namesake != c.namesake {
			t.Errorf("%s: %+v", c.argues, f)
		}
	}
}

// TestCondition: who has to act is told, and whether nothing goes on before.
func TestCondition(t *testing.T) {
	write := []Write{{}}
	for _, c := range []struct {
		argues string
		plan   Plan
		next   volume.Actor
		stuck  bool
	}{
		{"nobody", Plan{}, volume.Actor{}, false},
		{"the binder has something to write", Plan{Writes: write}, volume.Controller("binder"), false},
		{"or somebody else acts next", Plan{
			Writes: write, Because: volume.Because{Next: volume.Controller("placement")},
		}, volume.Controller("placement"), false},
		{"a user has to mend something", Plan{Because: volume.Because{Next: volume.User()}}, volume.User(), true},
		{"or only to use the claim", Plan{
			Because: volume.Because{Next: volume.User(), Reason: volume.ReasonWaitForFirstConsumer},
		}, volume.User(), false},
	} {
		if got := c.plan.Condition(); got.Next != c.next || got.Stuck != c.stuck {
			t.Errorf("%s: %+v", c.argues, got)
		}
	}
}

// TestFactsWithFree: the best free volume is a candidate of a claim that takes one, and of no other.
func TestFactsWithFree(t *testing.T) {
	kept, fits := pv("kept", "5Gi", refers("ns", "data", "")), pv("fits", "5Gi")
	fits.Spec.StorageClassName = ""
	view := cluster.Lists{Volumes: []*corev1.PersistentVolume{
		pv("taken", "5Gi", refers("ns", "other", "")), kept,
		fits,
	}}.View()
	free := func() *Free { return FreeOf(view) }
	for _, c := range []struct {
		name  string
		claim *corev1.PersistentVolumeClaim
		want  int
	}{
		{"it takes one", claim(noClass), 2}, {"it names one", claim(wantsPV), len(ClaimFactsOf(view,
			claim(wantsPV)).Candidates)},
	} {
		got := FactsWithFree(view, c.claim, free).Candidates
		if len(got) != c.want {
			t.Errorf("%s: candidates are %v, want %d", c.name, names(got), c.want)
		}
	}
}

func names(all []*corev1.PersistentVolume) (out []string) {
	for _, v := range all {
		out = append(out, v.Name)
	}
	return out
}
