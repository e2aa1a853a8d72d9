package migrate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func flexVolume(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pv1", UID: "pv-old", ResourceVersion: "7", Labels: map[string]string{"tier": "gold"},
			Finalizers:  []string{volume.FinalizerVolumeProtection},
			Annotations: map[string]string{volume.AnnBoundByController: "yes", "team": "blue"},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: "old",
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "data", UID: "claim-old",
				ResourceVersion: "5",
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: "example.com/lofs", FSType: "xfs", ReadOnly: true, Options: map[string]string{"share": "a"},
				SecretRef: &corev1.SecretReference{Name: "s"},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for _, c := range change {
		c(pv)
	}
	return pv
}

func oldClaim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "data", Namespace: "ns", UID: "claim-old", ResourceVersion: "9", Labels: map[string]string{"app": "db"},
			Finalizers: []string{volume.FinalizerClaimProtection},
			Annotations: map[string]string{
				volume.AnnBindCompleted: "yes", volume.AnnBoundByController: "yes", "note": "kept",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set"}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "pv1", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

// made returns the volume as a step of the journal creates it.
func made(t *testing.T, j *migrate.Journal, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	t.Helper()
	s := migrate.Next(migrate.Facts{Name: "pv1", Journal: j})
	if s.Verb != migrate.CreateVolume {
		t.Fatalf("%s: %s", s.Verb, s.Because.Message)
	}
	s.Volume.UID, s.Volume.Status.Phase = "pv-new", corev1.VolumeBound
	for _, c := range change {
		c(s.Volume)
	}
	return s.Volume
}

type row struct {
	argues string
	facts  migrate.Facts
}

func going[O metav1.Object](o O) { o.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)}) }

func retained(pv *corev1.PersistentVolume) {
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

func uidOf(uid string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.UID = types.UID(uid) }
}

func claimless(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }

func secretless(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.SecretRef = nil }

func ofOther(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Name = "other" }

func unbound(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }

func beginnings() []row {
	return []row{
		{"what is not in use is saved first", migrate.Facts{Volume: flexVolume(), Claim: oldClaim(), Served: true}},
		{"a Pod that runs keeps it where it is", migrate.Facts{
			Volume: flexVolume(), Claim: oldClaim(), Served: true, Pods: []string{"db-0"},
		}},
		{"so does a node that still has it", migrate.Facts{
			Volume: flexVolume(), Claim: oldClaim(), Served: true, Nodes: []string{"n1"},
		}},
		{"a driver that nobody serves gets nothing", migrate.Facts{Volume: flexVolume(), Claim: oldClaim()}},
		{"a volume that is not there", migrate.Facts{}},
		{"one of another kind", migrate.Facts{Volume: flexVolume(func(pv *corev1.PersistentVolume) {
			pv.Spec.FlexVolume = nil
			pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d"}
		}), Served: true}},
		{"one that is being deleted", migrate.Facts{Volume: flexVolume(going), Claim: oldClaim(), Served: true}},
		{"one whose claim is gone would be reclaimed", migrate.Facts{Volume: flexVolume(), Served: true}},
		{"one whose claim is another one of the name, too", migrate.Facts{
			Volume: flexVolume(), Claim: oldClaim(uidOf("other")), Served: true,
		}},
		{"one whose claim is being deleted", migrate.Facts{Volume: flexVolume(), Claim: oldClaim(going), Served: true}},
		{"one whose bind is not complete", migrate.Facts{
			Volume: flexVolume(), Claim: oldClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }),
			Served: true,
		}},
		{"a driver whose name is none", migrate.Facts{
			Volume: flexVolume(func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Driver = "a/b/c" }), Claim: oldClaim(),
			Served: true,
		}},
		{"a Secret without a namespace is the claim's; without a claim it is nobody's", migrate.Facts{
			Volume: flexVolume(claimless), Served: true,
		}},
		{"a claim may be named without its uid", migrate.Facts{
			Volume: flexVolume(func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" }), Claim: oldClaim(), Served: true,
		}},
		{"a volume without a claim goes alone", migrate.Facts{Volume: flexVolume(claimless, secretless), Served: true}},
	}
}

func ways(t *testing.T) []row {
	there := &migrate.Journal{Volume: flexVolume(), Claim: oldClaim()}
	back := &migrate.Journal{Volume: flexVolume(), Claim: oldClaim(), Back: true}
	return []row{
		{"the volume must outlive its claim", migrate.Facts{Journal: there, Volume: flexVolume(), Claim: oldClaim()}},
		{"the claim goes first", migrate.Facts{Journal: there, Volume: flexVolume(retained), Claim: oldClaim()}},
		{"unless a Pod came meanwhile", migrate.Facts{
			Journal: there, Volume: flexVolume(retained), Claim: oldClaim(), Pods: []string{"db-0"},
		}},
		{"a claim with a user stays until it has none", migrate.Facts{
			Journal: there, Volume: flexVolume(retained), Claim: oldClaim(going), Pods: []string{"db-0"},
		}},
		{"and without one goes by itself", migrate.Facts{
			Journal: there, Volume: flexVolume(retained), Claim: oldClaim(going),
		}},
		{"then the volume's object", migrate.Facts{Journal: there, Volume: flexVolume(retained)}},
		{
			"not while it is attached", migrate.Facts{Journal: there, Volume: flexVolume(retained), Nodes: []string{"n1", "n2"}},
		},
		{"it is waited for", migrate.Facts{Journal: there, Volume: flexVolume(retained, going)}},
		{"then it is made anew", migrate.Facts{Journal: there}},
		{"and its claim", migrate.Facts{Journal: there, Volume: made(t, there)}},
		{"the binder joins them", migrate.Facts{
			Journal: there, Volume: made(t, there), Claim: oldClaim(uidOf("claim-new"), unbound),
		}},
		{"the policy is what it was", migrate.Facts{
			Journal: there, Volume: made(t, there), Claim: oldClaim(uidOf("claim-new")),
		}},
		{"and all is done", migrate.Facts{Journal: there, Volume: made(t, there, func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		}), Claim: oldClaim(uidOf("claim-new"))}},
		{"a claim of the name that somebody else made is not ours to delete", migrate.Facts{
			Journal: there, Volume: flexVolume(retained),
			Claim: oldClaim(uidOf("claim-else"), func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }),
		}},
		{"nor is a volume", migrate.Facts{
			Journal: there, Volume: flexVolume(func(pv *corev1.PersistentVolume) { pv.UID = "pv-else" }), Claim: oldClaim(),
		}},
		{"on the way back the claim goes first, too", migrate.Facts{
			Journal: back, Volume: made(t, there), Claim: oldClaim(uidOf("claim-new")),
		}},
		{"then the volume", migrate.Facts{Journal: back, Volume: made(t, there)}},
		{"then the old one comes again", migrate.Facts{Journal: back}},
		{"and its claim", migrate.Facts{Journal: back, Volume: made(t, back)}},
		{"and nothing is left of it", migrate.Facts{Journal: back, Volume: made(t, back, func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		}), Claim: oldClaim(uidOf("claim-new"))}},
		{"who turns back before anything was deleted has the policy to restore", migrate.Facts{
			Journal: back, Volume: flexVolume(retained), Claim: oldClaim(),
		}},
		{"who turns back when only the claim was gone reserves the volume for a new one", migrate.Facts{
			Journal: back, Volume: flexVolume(retained),
		}},
		{"and gets it", migrate.Facts{
			Journal: back, Volume: flexVolume(retained, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" }),
		}},
		{"who turns back while the volume goes waits for it", migrate.Facts{
			Journal: back, Volume: flexVolume(retained, going),
		}},
		{"what somebody else deletes meanwhile is his to explain", migrate.Facts{
			Journal: there, Volume: made(t, there, going), Claim: oldClaim(uidOf("claim-new")),
		}},
		{"a volume that another claim got meanwhile is that one's", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(claimless)}, Volume: flexVolume(retained),
		}},
		{"one that had none may get any claim when it has arrived", migrate.Facts{Journal: &migrate.Journal{
			Volume: flexVolume(claimless, secretless),
		}, Volume: made(t, &migrate.Journal{Volume: flexVolume(claimless, secretless)}, func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = flexVolume().Spec.ClaimRef
		})}},
		{"not one whose claim is to come again", migrate.Facts{Journal: back, Volume: flexVolume(retained, ofOther)}},
		{"a finished journal is believed while its volume is there", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(), Done: true}, Volume: made(t, there),
		}},
		{"another volume of the name begins anew", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(), Done: true}, Served: true,
			Volume: flexVolume(func(pv *corev1.PersistentVolume) { pv.UID = "pv-else" }), Claim: oldClaim(),
		}},
	}
}

// oddWays are what somebody else has done to the objects meanwhile.
func oddWays(t *testing.T) []row {
	there, done := &migrate.Journal{Volume: flexVolume(), Claim: oldClaim()},
		&migrate.Journal{Volume: flexVolume(), Claim: oldClaim(), Done: true}
	nameless := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }
	strange := func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Driver = "a/b/c" }
	available := func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeAvailable }
	elsewhere := func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "other" }
	byHand := func(pv *corev1.PersistentVolume) { pv.UID, pv.Annotations = "pv-else", nil }
	other := func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Driver = "example.com/other" }
	claim := oldClaim(uidOf("claim-new"))
	return []row{
		{"what was finished and is gone is not there", migrate.Facts{Journal: done, Served: true}},
		{"a volume that another one has made for the bridge was not moved", migrate.Facts{
			Journal: done, Volume: made(t, there, byHand), Claim: claim, Served: true,
		}},
		{"the saved volume that is a FlexVolume again begins anew", migrate.Facts{
			Journal: done, Volume: flexVolume(), Claim: oldClaim(), Served: true,
		}},
		{"the saved volume with another driver is not the saved one", migrate.Facts{
			Journal: there, Volume: flexVolume(other), Claim: oldClaim(),
		}},
		{"the saved claim is ours, whatever it names", migrate.Facts{
			Journal: there, Volume: flexVolume(retained), Claim: oldClaim(nameless),
		}},
		{"without a saved one no claim is", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(claimless)}, Volume: flexVolume(retained, claimless),
			Claim: oldClaim(nameless),
		}},
		{"a volume whose claimRef was taken away is nobody's", migrate.Facts{
			Journal: there, Volume: flexVolume(retained, claimless),
		}},
		{"a claim of the name in another namespace is another one", migrate.Facts{
			Journal: there, Volume: flexVolume(retained, elsewhere),
		}},
		{"a volume that goes needs no policy", migrate.Facts{Journal: there, Volume: flexVolume(going)}},
		{"a driver that the bridge cannot serve after all", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(strange)},
		}},
		{"the binder has not come to the volume", migrate.Facts{
			Journal: there, Volume: made(t, there, available), Claim: claim,
		}},
		{"a new claim that somebody deletes goes first", migrate.Facts{
			Journal: there, Volume: made(t, there), Claim: oldClaim(uidOf("claim-new"), going),
		}},
		{"both are deleted by somebody", migrate.Facts{
			Journal: there, Volume: made(t, there, going), Claim: oldClaim(uidOf("claim-new"), going),
		}},
		{"a new volume whose claimRef was taken away gets its claim", migrate.Facts{
			Journal: there, Volume: made(t, there, claimless),
		}},
	}
}

func TestNext(t *testing.T) {
	for name, rows := range map[string][]row{"begin": beginnings(), "way": ways(t), "odd": oddWays(t)} {
		var out strings.Builder
		for _, r := range rows {
			r.facts.Name = "pv1"
			out.WriteString(told(r.argues, migrate.Next(r.facts)))
		}
		golden.Equal(t, "testdata/"+name+".txt", out.String())
	}
}

func TestTurn(t *testing.T) {
	there := &migrate.Journal{Volume: flexVolume(), Claim: oldClaim()}
	done := &migrate.Journal{Volume: flexVolume(), Claim: oldClaim(), Done: true}
	var out strings.Builder
	for _, r := range []struct {
		row
		back bool
	}{
		{row{"what was moved can be undone", migrate.Facts{Journal: done, Volume: made(t, there)}}, true},
		{row{
			"but not while a Pod uses it", migrate.Facts{Journal: done, Volume: made(t, there), Pods: []string{"db-0"}},
		}, true},
		{row{"it may be attached still: that is waited for on the way", migrate.Facts{
			Journal: done, Volume: made(t, there), Nodes: []string{"n1"},
		}}, true},
		{row{"what is not there was not moved", migrate.Facts{}}, true},
		{row{"so can what is half moved", migrate.Facts{Journal: there}}, true},
		{row{"and what is half undone can be moved after all", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(), Back: true},
		}}, false},
		{row{"what was never moved is as it was", migrate.Facts{Volume: flexVolume()}}, true},
		{row{"what was moved by somebody else is not known here", migrate.Facts{Volume: made(t, there)}}, true},
		{row{"what another claim got since stays", migrate.Facts{Journal: done, Volume: made(t, there, ofOther)}}, true},
		{row{"also if it had none", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(claimless), Done: true}, Volume: made(t, there),
		}}, true},
		{row{"and what was not moved yet is as it was, whoever has it", migrate.Facts{
			Journal: &migrate.Journal{Volume: flexVolume(claimless)}, Volume: flexVolume(retained),
		}}, true},
		{row{"what was deleted since does not come back", migrate.Facts{Journal: done}}, true},
		{row{"nor in the place of another one", migrate.Facts{
			Journal: done, Volume: flexVolume(func(pv *corev1.PersistentVolume) { pv.UID = "pv-else" }),
		}}, true},
	} {
		r.facts.Name = "pv1"
		out.WriteString(told(r.argues, migrate.Turn(r.facts, r.back)))
	}
	golden.Equal(t, "testdata/turn.txt", out.String())
}

// TestObjects shows what becomes of a volume and its claim.
func TestObjects(t *testing.T) {
	pv, claim, err := migrate.Target(flexVolume(), oldClaim())
	if err != nil {
		t.Fatal(err)
	}
	if _, anew, err := migrate.Target(flexVolume(),
		oldClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" })); err != nil ||
		anew.Spec.VolumeName != "pv1" {
		t.Errorf("the claim is not for the volume: %v, %v", anew, err)
	}
	golden.Equal(t, "testdata/target.yaml", asYAML(t, pv)+"---\n"+asYAML(t, claim))
	golden.Equal(t, "testdata/again.yaml", asYAML(t, made(t, &migrate.Journal{Volume: flexVolume(), Back: true})))
}

func asYAML(t *testing.T, o any) string {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func told(argues string, s migrate.Step) string {
	var extra strings.Builder
	if j := s.Journal; j != nil {
		fmt.Fprintf(&extra, "journal: back=%v done=%v volume=%s", j.Back, j.Done, j.Volume.UID)
		if j.Claim != nil {
			fmt.Fprintf(&extra, " claim=%s", j.Claim.UID)
		}
		extra.WriteString("\n")
	}
	if s.Policy != "" {
		fmt.Fprintf(&extra, "policy: %s\n", s.Policy)
	}
	if s.Volume != nil {
		fmt.Fprintf(&extra, "volume: %s\n", s.Volume.Name)
	}
	if s.Claim != nil {
		fmt.Fprintf(&extra, "claim: %s/%s of %s\n", s.Claim.Namespace, s.Claim.Name, s.Claim.Spec.VolumeName)
	}
	return fmt.Sprintf("# %s\n%s\n%s: %s -> %s\n%s\n", argues, s.Verb, s.Because.Reason, s.Because.Message, s.Because.Next,
		extra.String())
}
