package bind

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	class := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "data", UID: "u1", ResourceVersion: "7", Annotations: map[string]string{},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func pv(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "fast", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func refers(namespace, name string, uid types.UID) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name, UID: uid}
	}
}

func class(late bool) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "d.example.com"}
	if late {
		mode := storagev1.VolumeBindingWaitForFirstConsumer
		c.VolumeBindingMode = &mode
	}
	return c
}

func noClass(c *corev1.PersistentVolumeClaim)    { c.Spec.StorageClassName = nil }
func emptyClass(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new(string) }
func wantsPV(c *corev1.PersistentVolumeClaim)    { c.Spec.VolumeName = "pv" }
func completed(c *corev1.PersistentVolumeClaim)  { c.Annotations[volume.AnnBindCompleted] = "yes" }
func ours(c *corev1.PersistentVolumeClaim)       { c.Annotations[volume.AnnBoundByController] = "yes" }
func onNode(c *corev1.PersistentVolumeClaim)     { c.Annotations[volume.AnnSelectedNode] = "n1" }
func forUID9(c *corev1.PersistentVolumeClaim)    { c.Name = "prime-u9" }
func wasBound(c *corev1.PersistentVolumeClaim)   { c.Status.Phase = corev1.ClaimBound }
func block(v *corev1.PersistentVolume)           { m := corev1.PersistentVolumeBlock; v.Spec.VolumeMode = &m }
func slow(v *corev1.PersistentVolume)            { v.Spec.StorageClassName = "slow" }
func wide(v *corev1.PersistentVolume) {
	v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
}
func boundByUs(v *corev1.PersistentVolume) { v.Annotations[volume.AnnBoundByController] = "yes" }
func lost(v *corev1.PersistentVolume)      { v.Annotations[volume.AnnLostWith] = "n2" }
func provisioned(v *corev1.PersistentVolume) {
	v.Annotations[volume.AnnProvisionedBy] = "d.example.com"
}

func reclaim(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
}

type claimCase struct {
	argues string
	facts  ClaimFacts
}

// oddClaims are seldom seen: what old versions and people have left on claims,
// volumes and classes.
func oddClaims() []claimCase {
	soon, none := class(false), class(false)
	mode := storagev1.VolumeBindingImmediate
	soon.VolumeBindingMode, none.Provisioner = &mode, volume.NoProvisioner
	taken := func(c *corev1.PersistentVolumeClaim) {
		c.Status.Phase, c.Status.Capacity, c.Status.AccessModes = corev1.ClaimPending, c.Spec.Resources.Requests,
			c.Spec.AccessModes
	}
	pending := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }
	selects := func(operator metav1.LabelSelectorOperator) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: operator}},
			}
		}
	}
	old := func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{volume.AnnBetaStorageClass: "slow"}
	}
	oldVolume := func(v *corev1.PersistentVolume) { v.Annotations[volume.AnnBetaStorageClass] = "slow" }
	ext4 := func(v *corev1.PersistentVolume) { m := corev1.PersistentVolumeFilesystem; v.Spec.VolumeMode = &m }
	return []claimCase{
		{"without a class and a default one it waits for a volume without a class", ClaimFacts{Claim: claim(noClass)}},
		{"a class without a provisioner has only the volumes that there are", ClaimFacts{
			Claim: claim(), Class: none, Candidates: some(pv("small", "1Gi")),
		}},
		{"a provisioner of this process is asked without a write", ClaimFacts{
			Claim: claim(), Class: class(false), Served: true,
		}},
		{"a claim that has been asked for is not written again", ClaimFacts{
			Claim: claim(pending, asked(volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner)), Class: class(false),
		}},
		{"one spelling is not both", ClaimFacts{
			Claim: claim(pending, asked(volume.AnnStorageProvisioner)), Class: class(false),
		}},
		{"nor is the other", ClaimFacts{Claim: claim(pending, asked(volume.AnnBetaStorageProvisioner)), Class: class(false)}},
		{"a claim that is Pending has nothing", ClaimFacts{Claim: claim(taken), Class: class(true)}},
		{"no capacity", ClaimFacts{
			Claim: claim(taken, func(c *corev1.PersistentVolumeClaim) { c.Status.AccessModes = nil }), Class: class(true),
		}},
		{"and no access modes", ClaimFacts{
			Claim: claim(taken, func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = nil }), Class: class(true),
		}},
		{"a class may say that it does not wait", ClaimFacts{Claim: claim(), Class: soon}},
		{"the oldest spelling of the class counts, on both sides", ClaimFacts{
			Claim: claim(old), Class: class(false),
			Candidates: some(pv("fast", "5Gi"), pv("marked", "6Gi", oldVolume), pv("slow", "7Gi", slow)),
		}},
		{"a late claim takes what is kept for it, of whatever class", ClaimFacts{
			Claim: claim(), Class: class(true),
			Candidates: some(pv("fits", "5Gi"), pv("kept", "9Gi", refers("ns", "data", ""), slow)),
		}},
		{"of equal volumes the first by name is taken", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("b", "5Gi"), pv("a", "5Gi"), pv("c", "5Gi")),
		}},
		{"a selector that makes no sense selects nothing", ClaimFacts{
			Claim: claim(selects("near")), Class: class(false), Candidates: some(pv("fits", "5Gi")),
		}},
		{"one that does selects", ClaimFacts{
			Claim: claim(selects(metav1.LabelSelectorOpDoesNotExist)), Class: class(false), Candidates: some(pv("fits", "5Gi")),
		}},
		{"no mode is that of a filesystem", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("fits", "5Gi", ext4)),
		}},
		{"a volume that was lost with its node is not free", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("lost", "5Gi", lost), pv("large", "9Gi")),
		}},
	}
}

// oddBindings are of claims that name a volume, or that a volume names.
func oddBindings() []claimCase {
	going := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }
	gold := func(v *corev1.PersistentVolume) { name := "gold"; v.Spec.VolumeAttributesClassName = &name }
	growing := func(v *corev1.PersistentVolume) { v.Annotations[volume.AnnPreResizeCapacity] = "5Gi" }
	ours, made := refers("ns", "data", "u1"), []func(*corev1.PersistentVolume){refers("ns", "data", "u1"), provisioned}
	return []claimCase{
		{"a volume made for the claim says who was asked, which nobody has written", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("pv", "5Gi", made...)),
		}},
		{"what was written is not written again", ClaimFacts{
			Claim: claim(asked(volume.AnnStorageProvisioner, volume.AnnBetaStorageProvisioner)), Class: class(false),
			Candidates: some(pv("pv", "5Gi", made...)),
		}},
		{"one that nobody's provisioner made says nothing", ClaimFacts{
			Claim: claim(asked(volume.AnnStorageProvisioner)), Class: class(false), Candidates: some(pv("pv", "5Gi", ours)),
		}},
		{"one made for another claim that was free says nothing of this one", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("pv", "5Gi", provisioned)),
		}},
		{"of a volume that is growing the claim has what it had before", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: some(pv("pv", "9Gi", ours, growing)),
		}},
		{"the claim is bound with the volume's class of attributes", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", ours, gold, wide),
		}},
		{"a claim without any annotation gets them", ClaimFacts{
			Claim: claim(wantsPV, func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }), Class: class(false),
			Volume: pv("pv", "5Gi"),
		}},
		{"a volume asked for by name that is going is not bound", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", going),
		}},
		{"nor one of another class", ClaimFacts{Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", slow)}},
		{"nor one of another class of attributes", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", gold),
		}},
		{"nor one of another mode", ClaimFacts{Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", block)}},
		{"nor one without the access modes", ClaimFacts{
			Claim: claim(wantsPV, func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = corev1.ReadWriteMany }),
			Class: class(false), Volume: pv("pv", "5Gi"),
		}},
	}
}

// asked has a claim say whom it was asked of, in these spellings.
func asked(spellings ...string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		for _, s := range spellings {
			c.Annotations[s] = "d.example.com"
		}
	}
}

func some(all ...*corev1.PersistentVolume) []*corev1.PersistentVolume { return all }

func TestClaims(t *testing.T) {
	all := []*corev1.PersistentVolume{
		pv("small", "1Gi"), pv("large", "9Gi"), pv("fits", "6Gi"), pv("wide", "5Gi", wide), pv("slow", "5Gi", slow),
		pv("raw", "5Gi", block),
	}
	var out strings.Builder
	for _, c := range append([]claimCase{
		{"the smallest volume of the tightest access modes that fits is taken", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: all,
		}},
		{"a volume that a user keeps for the claim wins over a better one", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: append(all, pv("kept", "50Gi", refers("ns", "data", ""))),
		}},
		{"a late claim takes nothing but what is kept for it", ClaimFacts{
			Claim: claim(), Class: class(true), Candidates: all,
		}},
		{"a late claim with a consumer waits for its node", ClaimFacts{
			Claim: claim(), Class: class(true), Consumers: []string{"web"},
		}},
		{"a late claim with a node is provisioned", ClaimFacts{Claim: claim(onNode), Class: class(true)}},
		{"nothing fits, so the provisioner is asked in both spellings", ClaimFacts{
			Claim: claim(), Class: class(false), Candidates: all[:1],
		}},
		{"a claim without a class gets the default one", ClaimFacts{Claim: claim(noClass), Default: class(false)}},
		{"the empty class is no class, not the default", ClaimFacts{Claim: claim(emptyClass), Default: class(false)}},
		{"a class that does not exist is an error of its user", ClaimFacts{Claim: claim()}},
		{
			"a volume asked for by name that is not there is waited for", ClaimFacts{Claim: claim(wantsPV), Class: class(false)},
		},
		{"a volume asked for by name is bound", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi"),
		}},
		{"a volume asked for by name that is too small is not", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "1Gi"),
		}},
		{"a volume of somebody else is not taken", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", refers("other", "data", "u2")),
		}},
		{"a claim of the same name but another UID has no right to it", ClaimFacts{
			Claim: claim(wantsPV), Class: class(false), Volume: pv("pv", "5Gi", refers("ns", "data", "u0")),
		}},
		{"a stop after the first write is made good", ClaimFacts{
			Claim: claim(), Class: class(false),
			Candidates: []*corev1.PersistentVolume{pv("pv", "5Gi", refers("ns", "data", "u1"), boundByUs)},
		}},
		{"a bound claim whose volume is gone is lost", ClaimFacts{Claim: claim(wantsPV, completed, wasBound)}},
		{"a bound claim without a volume's name is lost", ClaimFacts{Claim: claim(completed, wasBound)}},
		{"a bound claim whose volume belongs to another is lost", ClaimFacts{
			Claim: claim(wantsPV, completed, wasBound), Volume: pv("pv", "5Gi", refers("ns", "b", "u9")),
		}},
		{"a populator has filled the volume for another claim, and has no use for this one any more", ClaimFacts{
			Claim: claim(wantsPV, completed, wasBound, forUID9), Volume: pv("pv", "5Gi", refers("ns", "b", "u9")),
		}},
		{"which is not so for yet another claim", ClaimFacts{
			Claim: claim(wantsPV, completed, wasBound, forUID9), Volume: pv("pv", "5Gi", refers("ns", "b", "u8")),
		}},
		{"a bound claim whose volume has another uid for it is lost, and told how to mend that", ClaimFacts{
			Claim: claim(wantsPV, completed, wasBound), Volume: pv("pv", "5Gi", refers("ns", "data", "u0")),
		}},
		{"a bound claim is left alone, a larger volume is a resize's matter", ClaimFacts{Claim: claim(wantsPV, completed,
			ours, wasBound, func(c *corev1.PersistentVolumeClaim) {
				c.Status.AccessModes = c.Spec.AccessModes
			}), Volume: pv("pv", "50Gi", refers("ns", "data", "u1"),
			func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound })}},
	}, append(oddClaims(), oddBindings()...)...) {
		fmt.Fprintf(&out, "# %s\n%s----\n%s\n", c.argues, claimText(c.facts),
			text(t, Claim(c.facts), c.facts.Claim, append(c.facts.Candidates, c.facts.Volume)...))
	}
	golden.Equal(t, "testdata/claims.txt", out.String())
}

type volumeCase struct {
	argues string
	facts  VolumeFacts
}

func TestVolumes(t *testing.T) {
	bound := claim(wantsPV)
	var out strings.Builder
	for _, c := range append([]volumeCase{
		{"a volume without a reference is available", VolumeFacts{
			Volume: pv("pv", "5Gi", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumePending }),
		}},
		{
			"one that a user keeps for a claim is available too", VolumeFacts{Volume: pv("pv", "5Gi", refers("ns", "data", ""))},
		},
		{"a volume whose claim is bound to it is bound", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1")), Claim: bound,
		}},
		{"the claim's own decision finishes a link", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1")), Claim: claim(),
		}},
		{"a volume of another mode than the claim for which it is kept is told", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), block), Claim: claim(),
		}},
		{"a volume whose claim is gone is released for deletion", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1")),
		}},
		{"one that a claim of its reference's name names is kept, whatever uid the reference has", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u0")), Namesake: bound,
		}},
		{"a claim made anew that does not name it does not keep it", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u0")), Namesake: claim(),
		}},
		{"nor does one that names another one", VolumeFacts{
			Volume: pv("pv2", "5Gi", refers("ns", "data", "u0")), Namesake: bound,
		}},
		{"a retained one is released and kept, named or not", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u0"), reclaim(corev1.PersistentVolumeReclaimRetain)), Namesake: bound,
		}},
		{"a retained one is released and kept", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), reclaim(corev1.PersistentVolumeReclaimRetain)),
		}},
		{"a policy that is not known is nobody's", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), reclaim("Burn")),
		}},
		{"nobody recycles", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), reclaim(corev1.PersistentVolumeReclaimRecycle)),
		}},
		{"a provisioned volume whose claim went elsewhere is deleted", VolumeFacts{
			Volume: pv("pv2", "5Gi", refers("ns", "data", "u1"), provisioned), Claim: bound,
		}},
		{"a link of ours is undone", VolumeFacts{
			Volume: pv("pv2", "5Gi", refers("ns", "data", "u1"), boundByUs), Claim: bound,
		}},
		{"one that somebody has called broken is available again, without what was said", VolumeFacts{
			Volume: pv("pv", "5Gi", func(v *corev1.PersistentVolume) { v.Status.Message = "broken" }),
		}},
		{"a provisioned volume that is to be retained is given free", VolumeFacts{
			Volume: pv("pv2", "5Gi", refers("ns", "data", "u1"), provisioned, reclaim(corev1.PersistentVolumeReclaimRetain)),
			Claim:  bound,
		}},
	}, settledVolumes(bound)...) {
		v := c.facts.Volume
		fmt.Fprintf(&out, "# %s\nvolume %s %s %s ref=%s claim=%v\n----\n%s\n", c.argues, v.Name, v.Status.Phase,
			v.Spec.PersistentVolumeReclaimPolicy, ref(v.Spec.ClaimRef), c.facts.Claim != nil,
			text(t, Volume(c.facts), c.facts.Claim, v))
	}
	golden.Equal(t, "testdata/volumes.txt", out.String())
}

// settledVolumes have a status that stays, or says what was lost with a node.
func settledVolumes(bound *corev1.PersistentVolumeClaim) []volumeCase {
	return []volumeCase{
		{"what is released stays so", VolumeFacts{Volume: pv("pv", "5Gi", refers("ns", "data", "u1"),
			func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased; v.Status.Message = "wait" })}},
		{"and what could not be deleted, with the reason", VolumeFacts{Volume: pv("pv", "5Gi", refers("ns", "data", "u1"),
			func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed; v.Status.Message = "no" })}},
		{"nobody says twice that nobody recycles", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), reclaim(corev1.PersistentVolumeReclaimRecycle),
				func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed }),
		}},
		{"of a user's link only what we added is undone", VolumeFacts{
			Volume: pv("pv2", "5Gi", refers("ns", "data", "u1")), Claim: bound,
		}},
		{"a volume that was lost with its node says so while it is bound", VolumeFacts{
			Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), lost,
				func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }), Claim: bound,
		}},
		{"and is released like any other", VolumeFacts{Volume: pv("pv", "5Gi", refers("ns", "data", "u1"), lost)}},
	}
}

func claimText(f ClaimFacts) string {
	name, named := ClassOf(f.Claim)
	s := fmt.Sprintf("claim wants %s of class %q (named: %v, exists: %v), volume %q\n",
		f.Claim.Spec.Resources.Requests.Storage(), name, named, f.Class != nil, f.Claim.Spec.VolumeName)
	for _, v := range append(f.Candidates, f.Volume) {
		if v != nil {
			s += fmt.Sprintf("volume %s %s class=%s modes=%v ref=%s\n", v.Name, v.Spec.Capacity.Storage(),
				v.Spec.StorageClassName, v.Spec.AccessModes, ref(v.Spec.ClaimRef))
		}
	}
	return s
}

func ref(r *corev1.ObjectReference) string {
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("%s/%s/%s", r.Namespace, r.Name, r.UID)
}

// text is all that a plan says and changes.
func text(t *testing.T, p Plan, claim *corev1.PersistentVolumeClaim, volumes ...*corev1.PersistentVolume) string {
	t.Helper()
	if p.Because.Reason == "" || p.Because.Message == "" {
		t.Error("a plan without a reason")
	}
	now := map[string]metav1.Object{"claim": claim}
	for _, v := range volumes {
		if v != nil {
			now["volume "+v.Name] = v
		}
	}
	var b strings.Builder
	beside := ""
	wrote := func(what, status string, o metav1.Object) {
		fmt.Fprintf(&b, "write %s%s%s\n%s", what, status, beside, golden.Change(t, now[what], o))
		now[what] = o
	}
	for _, w := range p.Writes {
		beside = map[bool]string{true: ", at the same time"}[w.Beside]
		switch {
		case w.Volume != nil:
			wrote("volume "+w.Volume.Name, "", w.Volume)
		case w.VolumeStatus != nil:
			wrote("volume "+w.VolumeStatus.Name, " status", w.VolumeStatus)
		case w.Claim != nil:
			wrote("claim", "", w.Claim)
		case w.ClaimStatus != nil:
			wrote("claim", " status", w.ClaimStatus)
		}
	}
	events := map[Event]string{Silent: "silent", Normal: "event", Lasting: "event if it lasts", Warning: "warning"}
	fmt.Fprintf(&b, "%s %s: %s -> %s\n", events[p.Event], p.Because.Reason, p.Because.Message, p.Because.Next)
	if p.Condition().Stuck {
		b.WriteString("stuck\n")
	}
	if p.Ask != "" {
		fmt.Fprintf(&b, "ask %s\n", p.Ask)
	}
	return b.String()
}

// TestDefaultClass: of several the newest is the default, of equally old ones
// the first by name (S4-011).
func TestDefaultClass(t *testing.T) {
	class := func(name string, age int64, annotation string) *storagev1.StorageClass {
		c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000-age, 0)}}
		if annotation != "" {
			c.Annotations = map[string]string{annotation: "true"}
		}
		return c
	}
	plain, old, young := class("plain", 1, ""), class("old", 9, volume.AnnDefaultClass),
		class("young", 2, volume.AnnBetaDefaultClass)
	twin, off := class("twin", 2, volume.AnnDefaultClass), class("off", 0, "")
	off.Annotations = map[string]string{volume.AnnDefaultClass: "false"}
	for _, c := range []struct {
		argues  string
		classes []*storagev1.StorageClass
		want    string
	}{
		{"none", []*storagev1.StorageClass{plain, off}, ""},
		{"one", []*storagev1.StorageClass{plain, old, off}, "old"},
		{"the newest", []*storagev1.StorageClass{young, plain, old}, "young"},
		{"the newest, whatever the order", []*storagev1.StorageClass{old, young}, "young"},
		{"the first by name", []*storagev1.StorageClass{young, twin, old}, "twin"},
		{"the first by name, whatever the order", []*storagev1.StorageClass{twin, young}, "twin"},
	} {
		name := ""
		if got := DefaultClass(c.classes); got != nil {
			name = got.Name
		}
		if name != c.want {
			t.Errorf("%s: %q, want %q", c.argues, name, c.want)
		}
	}
}
