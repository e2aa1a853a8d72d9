package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example.com"

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	class := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u1", Annotations: map[string]string{
			volume.AnnStorageProvisioner: driver, "team": "red",
		}},
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

// intent is that of claim u1.
func intent() *Intent {
	return &Intent{
		Driver: driver, Name: "pvc-u1", Claim: corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "u1"},
		Reclaim: corev1.PersistentVolumeReclaimDelete,
	}
}

func deleting(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }
func bound(c *corev1.PersistentVolumeClaim)    { c.Spec.VolumeName = "other" }
func had(c *corev1.PersistentVolumeClaim) {
	c.Spec.VolumeName, c.Annotations[volume.AnnBindCompleted] = "pvc-u1", "yes"
}

func selects(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }
func unasked(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }

func older(c *corev1.PersistentVolumeClaim) {
	c.Annotations = map[string]string{volume.AnnBetaStorageProvisioner: driver}
}

func clones(c *corev1.PersistentVolumeClaim) {
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "source"}
}

func class(parameters map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver, Parameters: parameters,
	}
}

func lateClass() *storagev1.StorageClass {
	c, mode := class(nil), storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
	return c
}

func saved(uid types.UID) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{UID: uid}}}
}

// ours are the facts of a claim of a class whose driver is here.
func ours(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) ClaimFacts {
	return ClaimFacts{Claim: c, Class: class, Reachable: true}
}

func TestClaims(t *testing.T) {
	var out strings.Builder
	for _, c := range slices.Concat(newClaims(), nodeClaims(), openIntents(), wholeClaims(), halfDone()) {
		if c.facts.Intent == nil && c.facts.Driver == "" {
			c.facts.Driver = ProvisionerOf(c.facts.Claim)
		}
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, Claim(c.facts)))
	}
	golden.Equal(t, "testdata/claims.txt", out.String())
}

// newClaims are those that nothing was done for yet.
func newClaims() []claimCase {
	secret := func(name string) map[string]string {
		return map[string]string{
			"csi.storage.k8s.io/provisioner-secret-name":      name,
			"csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
		}
	}
	return []claimCase{
		{"what CreateVolume will be called with is recorded first", ours(claim(),
			class(map[string]string{"tier": "1", "csi.storage.k8s.io/fstype": "xfs"}))},
		{"a claim that asks nobody is the binder's", ours(claim(unasked), class(nil))},
		{"a driver that is not here cannot be asked", ClaimFacts{Claim: claim(), Class: class(nil)}},
		{"a driver that makes no volumes is named with what it lacks", ClaimFacts{
			Claim: claim(), Class: class(nil), Reachable: true, Lacks: "CREATE_DELETE_VOLUME",
		}},
		{"the older spelling of the request is one too", ours(claim(older), class(nil))},
		{"a request within the process is one too", ClaimFacts{
			Claim: claim(unasked), Class: class(nil), Driver: driver, Reachable: true,
		}},
		{"a claim that is going is left alone", ours(claim(deleting), class(nil))},
		{"a bound claim needs nothing", ours(claim(bound), class(nil))},
		{"the class has to exist", ClaimFacts{Claim: claim(), Reachable: true}},
		{"a class that changed its provisioner is not ours", ours(claim(), &storagev1.StorageClass{Provisioner: "x"})},
		{"nor is one of a former plugin of Kubernetes', which has to be told", ours(claim(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gp2"}, Provisioner: "kubernetes.io/aws-ebs",
		})},
		{"nor one that makes no volumes any more", ours(claim(),
			&storagev1.StorageClass{Provisioner: volume.NoProvisioner})},
		{"a late claim waits for its node", ours(claim(), lateClass())},
		{"a selector cannot be provisioned (S4)", ours(claim(selects), class(nil))},
		{"an unknown key of Kubernetes' is a mistake", ours(claim(),
			class(map[string]string{"csi.storage.k8s.io/typo": "1"}))},
		{"the older key of the filesystem type is the driver's as well (S1-026)", ours(claim(),
			class(map[string]string{"fsType": "xfs"}))},
		{"two of the older keys are a mistake", ours(claim(), class(map[string]string{"fsType": "xfs", "fstype": "xfs"}))},
		{"two filesystem types are a mistake", ours(claim(),
			class(map[string]string{"csi.storage.k8s.io/fstype": "xfs", "fstype": "ext4"}))},
		{"a secret's template may use the claim's annotations in its name", ours(claim(),
			class(secret("s-${pvc.annotations['team']}")))},
		{"the older keys of a secret are the driver's as well (S1-116)", ours(claim(), class(map[string]string{
			"csiProvisionerSecretName": "${pvc.name}", "csiProvisionerSecretNamespace": "x", "csiNodeStageSecretName": "y",
			"csiNodeStageSecretNamespace": "x",
		}))},
		{"both spellings of a secret are a mistake", ours(claim(), class(map[string]string{
			"csiProvisionerSecretName": "a", "csiProvisionerSecretNamespace": "x",
			"csi.storage.k8s.io/provisioner-secret-name": "a", "csi.storage.k8s.io/provisioner-secret-namespace": "x",
		}))},
		{"one secret for all purposes but those that name their own", ours(claim(), class(map[string]string{
			"csi.storage.k8s.io/secret-name": "all", "csi.storage.k8s.io/secret-namespace": "x",
			"csi.storage.k8s.io/node-stage-secret-name": "own", "csi.storage.k8s.io/node-stage-secret-namespace": "x",
		}))},
		{"half a secret is a mistake", ours(claim(), class(map[string]string{"csiNodePublishSecretName": "a"}))},
		{"an unknown token is a mistake", ours(claim(), class(secret("${pod.name}")))},
		{"a name that leads elsewhere is a mistake", ours(claim(), class(secret("../x")))},
		{"no node tells a topology", ClaimFacts{Claim: claim(), Class: class(nil), Reachable: true, Topology: true}},
		{"a selected node without the driver is given up", ClaimFacts{
			Claim: claim(), Class: class(nil), Reachable: true, Topology: true,
			Places: topology.Facts{Driver: driver, Selected: "n1"},
		}},
	}
}

// nodeClaims are claims of a driver that is called for the volumes of node n1 only.
func nodeClaims() []claimCase {
	here, rest := volume.Scope{Node: "n1"}, volume.Scope{Node: "n1", Rest: true}
	on := func(node string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = node }
	}
	in, keeping := intent(), intent()
	in.Node, keeping.Node, keeping.Reclaim = "n1", "n1", corev1.PersistentVolumeReclaimRetain
	return []claimCase{
		{"a node-local driver makes the volume on the node", ClaimFacts{
			Claim: claim(on("n1")), Class: lateClass(), Reachable: true, Scope: here,
		}},
		{"one host makes those of no node", ClaimFacts{Claim: claim(), Class: class(nil), Reachable: true, Scope: rest}},
		{"the older annotation names a node, too", ClaimFacts{
			Claim: claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnAlphaSelectedNode] = "n1" }),
			Class: lateClass(), Reachable: true, Scope: here,
		}},
		{"another node's claim is not ours", ClaimFacts{Claim: claim(on("n2")), Class: lateClass(), Scope: here}},
		{"after a crash the call is repeated on its node", ClaimFacts{
			Claim: claim(on("n1")), Intent: in, Reachable: true, Scope: here,
		}},
		{"a claim that has left for another node leaves no volume", ClaimFacts{
			Claim: claim(on("n2")), Intent: in, Reachable: true, Scope: here,
		}},
		{"nor one that would be retained: nobody has used it", ClaimFacts{
			Claim: claim(on("n2")), Intent: keeping, Reachable: true, Scope: here,
		}},
		{"nor does one without a node, unless this host has those", ClaimFacts{
			Claim: claim(), Intent: in, Reachable: true, Scope: here,
		}},
		{"which goes on then", ClaimFacts{Claim: claim(), Intent: in, Reachable: true, Scope: rest}},
		{"what a claim that is gone may have used is retained", ClaimFacts{Intent: keeping, Reachable: true, Scope: here}},
	}
}

// openIntents are claims that something may have been done for.
func openIntents() []claimCase {
	in, keeping := intent(), intent()
	keeping.Reclaim = corev1.PersistentVolumeReclaimRetain
	asked := Claim(ClaimFacts{Claim: claim(), Class: class(nil), Driver: driver, Reachable: true}).Intent
	return []claimCase{
		{"after a crash the call is repeated", ClaimFacts{Claim: claim(), Intent: in, Reachable: true}},
		{"a saved volume ends the intent", ClaimFacts{Claim: claim(), Intent: in, Reachable: true, Saved: saved("u1")}},
		{"a claim that had its volume gets no second one", ClaimFacts{Claim: claim(had), Intent: in, Reachable: true}},
		{"a deleted claim's volume is undone, whatever became of the class", ClaimFacts{
			Claim: claim(deleting), Intent: in, Reachable: true,
		}},
		{"so is that of a claim that is gone", ClaimFacts{Intent: in, Reachable: true}},
		{"what is to be retained is never undone", ClaimFacts{Intent: keeping, Reachable: true}},
		{"a claim that was bound elsewhere too", ClaimFacts{Claim: claim(bound), Intent: in, Reachable: true}},
		{"an intent waits for its driver", ClaimFacts{Claim: claim(deleting), Intent: in}},
		{"a no that proves nothing is asked again", ClaimFacts{
			Claim: claim(), Class: class(nil), Intent: asked, Driver: driver, MayExist: true, Reachable: true,
		}},
		{"what the claim wants otherwise now comes after it", ClaimFacts{
			Claim: claim(), Class: class(map[string]string{"tier": "2"}), Intent: asked, Driver: driver, MayExist: true,
			Reachable: true,
		}},
		{"a saved volume ends such an intent, too", ClaimFacts{
			Claim: claim(), Class: class(nil), Intent: asked, Driver: driver, MayExist: true, Reachable: true,
			Saved: saved("u1"),
		}},
		{"what hinders the next question is told", ClaimFacts{
			Claim: claim(), Intent: asked, Driver: driver, MayExist: true, Reachable: true,
		}},
		{"a claim that goes takes what may be there with it", ClaimFacts{
			Claim: claim(deleting), Class: class(nil), Intent: asked, Driver: driver, MayExist: true, Reachable: true,
		}},
		{"and for what its driver could once", ClaimFacts{
			Claim: claim(deleting), Intent: in, Reachable: true, Lacks: "CREATE_DELETE_VOLUME",
		}},
	}
}

func TestAttributesClasses(t *testing.T) {
	gold := func(c *corev1.PersistentVolumeClaim) { name := "gold"; c.Spec.VolumeAttributesClassName = &name }
	none := func(c *corev1.PersistentVolumeClaim) { name := ""; c.Spec.VolumeAttributesClassName = &name }
	of := func(driver string) *storagev1.VolumeAttributesClass {
		return &storagev1.VolumeAttributesClass{DriverName: driver, Parameters: map[string]string{"iops": "9"}}
	}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		claim  func(*corev1.PersistentVolumeClaim)
		facts  ClaimFacts
	}{
		{"its parameters go to the driver, its name to the volume", gold, ClaimFacts{Modifies: true, Attributes: of(driver)}},
		{"a driver that knows no such attributes is named with what it lacks", gold, ClaimFacts{Attributes: of(driver)}},
		{"the class is not there", gold, ClaimFacts{Modifies: true}},
		{"the class is another driver's", gold, ClaimFacts{Modifies: true, Attributes: of("x.example.com")}},
		{"an empty name is none", none, ClaimFacts{}},
		{"a provisioner without attributes ignores the class", gold, ClaimFacts{
			Options: Options{WithoutAttributes: true}, Modifies: true, Attributes: of(driver),
		}},
		{"also for a driver that knows none", gold, ClaimFacts{Options: Options{WithoutAttributes: true}}},
	} {
		c.facts.Claim, c.facts.Class, c.facts.Driver, c.facts.Reachable = claim(c.claim), class(nil), driver, true
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, Claim(c.facts)))
	}
	golden.Equal(t, "testdata/attributes.txt", out.String())
}

func planText(t *testing.T, p Plan) string {
	t.Helper()
	if p.Because.Reason == "" || p.Because.Message == "" {
		t.Error("a plan without a reason")
	}
	step := map[Step]string{Nothing: "nothing", Record: "record", Create: "create", Finish: "finish", Undo: "undo"}[p.Step]
	s := fmt.Sprintf("%s fault=%v reschedule=%v\n%s: %s -> %s\n", step, p.Fault, p.Reschedule, p.Because.Reason,
		p.Because.Message, p.Because.Next)
	if p.Step == Record {
		back, err := ParseIntent(p.Intent.String())
		if diff := cmp.Diff(p.Intent, back); err != nil || diff != "" {
			t.Errorf("an intent changed on its way through the log: %v\n%s", err, diff)
		}
	}
	if p.Intent != nil {
		s += p.Intent.String() + "\n"
	}
	return s + "\n"
}

func unclaimed(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }

func free(v *corev1.PersistentVolume) { v.Finalizers = nil }

func retain(v *corev1.PersistentVolume) {
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

func TestVolumes(t *testing.T) {
	pv := func(phase corev1.PersistentVolumePhase, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := Object(intent(), Answer{Handle: "h"}, "")
		v.Status.Phase = phase
		for _, f := range change {
			f(v)
		}
		return v
	}
	going := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }
	named := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-u1" }
	other := func(c *corev1.PersistentVolumeClaim) { c.UID = "u2" }
	foreign := func(v *corev1.PersistentVolume) { v.Annotations[volume.AnnProvisionedBy] = "x" }
	byHand := func(v *corev1.PersistentVolume) { v.Annotations = nil }
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  VolumeFacts
	}{
		{"a released volume is deleted", VolumeFacts{Volume: pv(corev1.VolumeReleased), Reachable: true}},
		{"not while a claim names it that it names by another uid", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Claim: claim(named, other),
		}},
		{"nor while its own claim is there", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Claim: claim(named),
		}},
		{"a claim of the name that does not name it does not keep it", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Claim: claim(other),
		}},
		{"not while it is attached", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Attachments: []string{"csi-1"},
		}},
		{"not while another object has its handle", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Sharer: "twin",
		}},
		{"not without its driver", VolumeFacts{Volume: pv(corev1.VolumeReleased)}},
		{"nor by one that cannot delete", VolumeFacts{
			Volume: pv(corev1.VolumeReleased), Reachable: true, Lacks: "CREATE_DELETE_VOLUME",
		}},
		{"not while its claim is bound, even if the object is deleted first", VolumeFacts{
			Volume: pv(corev1.VolumeBound, going), Reachable: true,
		}},
		{"not twice", VolumeFacts{Volume: pv(corev1.VolumeReleased, going, free), Reachable: true}},
		{"a stop after the finalizer went repeats the deletion, and takes hold of the object for it", VolumeFacts{
			Volume: pv(corev1.VolumeReleased, free), Reachable: true,
		}},
		{"a bound volume that is to be deleted one day is kept until then", VolumeFacts{
			Volume: pv(corev1.VolumeBound, free), Reachable: true,
		}},
		{"one that no claim has had can be taken away as it came", VolumeFacts{
			Volume: pv(corev1.VolumeAvailable, free, unclaimed), Reachable: true,
		}},
		{"a policy that was changed is followed", VolumeFacts{Volume: pv(corev1.VolumeReleased, retain), Reachable: true}},
		{"a retained volume is the user's", VolumeFacts{Volume: pv(corev1.VolumeReleased, retain, free), Reachable: true}},
		{"a volume made by hand follows its policy, too (S4-056)", VolumeFacts{
			Volume: pv(corev1.VolumeReleased, byHand), Reachable: true,
		}},
		{"a volume whose object was deleted first is deleted at the driver", VolumeFacts{
			Volume: pv(corev1.VolumeReleased, going), Reachable: true,
		}},
		{"a bound volume that is kept is as it should be", VolumeFacts{Volume: pv(corev1.VolumeBound), Reachable: true}},
		{"one that is going is not taken hold of", VolumeFacts{Volume: pv(corev1.VolumeBound, going, free), Reachable: true}},
		{"a volume that something else made is not the driver's", VolumeFacts{
			Volume: pv(corev1.VolumeReleased, foreign), Reachable: true,
		}},
	} {
		reclaim, why := Volume(c.facts)
		name := map[Reclaim]string{Keep: "keep", Adopt: "adopt", Disown: "disown", Delete: "delete"}[reclaim]
		fmt.Fprintf(&out, "# %s\n%s\n%s: %s -> %s\n\n", c.argues, name, why.Reason, why.Message, why.Next)
	}
	why := DeleteFailed(pv(corev1.VolumeReleased), volume.Answer{Code: "Internal", Text: "Internal: no"})
	fmt.Fprintf(&out, "# a driver that fails is quoted\n%s: %s -> %s\n", why.Reason, why.Message, why.Next)
	retained := pv(corev1.VolumeReleased)
	retained.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	why = RetainedTooLate(retained)
	fmt.Fprintf(&out, "\n# who retains it too late reads what became of it\n%s: %s -> %s\n",
		why.Reason, why.Message, why.Next)
	golden.Equal(t, "testdata/volumes.txt", out.String())
}

// TestPhases: what counts is whether the claim is gone and whether the object is held, whatever was done before.
func TestPhases(t *testing.T) {
	going := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{} }
	reserved := func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }
	held := func(*corev1.PersistentVolume) {}
	for _, c := range []struct {
		argues string
		phase  corev1.PersistentVolumePhase
		change func(*corev1.PersistentVolume)
		want   Reclaim
	}{
		{"what somebody could not reclaim is deleted", corev1.VolumeFailed, held, Delete},
		{"also if its object is deleted first", corev1.VolumeFailed, going, Delete},
		{"it is held again if its policy was another one meanwhile", corev1.VolumeFailed, free, Adopt},
		{"so is a released one", corev1.VolumeReleased, free, Adopt},
		{"and one of which no phase is written yet", "", free, Adopt},
		{"one whose claimRef a user has removed is not released any more", corev1.VolumeReleased, unclaimed, Keep},
		{"nor is one that is reserved for a new claim", corev1.VolumeFailed, reserved, Keep},
	} {
		v := Object(intent(), Answer{Handle: "h"}, "")
		v.Status.Phase = c.phase
		c.change(v)
		if got, why := Volume(VolumeFacts{Volume: v, Reachable: true}); got != c.want {
			t.Errorf("%s: got step %d, want %d: %s", c.argues, got, c.want, why.Message)
		}
	}
}

// TestIntentsThatMakeNoSense are not followed: they say what a driver makes and
// deletes.
func TestIntentsThatMakeNoSense(t *testing.T) {
	for _, change := range []func(*Intent){
		func(in *Intent) { in.Name = "pvc-u2" },
		func(in *Intent) { in.Claim.UID = "" },
		func(in *Intent) { in.Claim.UID, in.Name = "", "pvc-" },
		func(in *Intent) { in.Driver = "" },
	} {
		in := intent()
		change(in)
		if _, err := ParseIntent(in.String()); err == nil {
			t.Error("accepted:", in)
		}
	}
	if _, err := ParseIntent("{"); err == nil {
		t.Error("half an intent was accepted")
	}
}

// TestForgotten: what kept a volume goes in one write, and what is somebody
// else's stays.
func TestForgotten(t *testing.T) {
	v := Object(intent(), Answer{Handle: "h"}, "")
	v.UID, v.Finalizers = "u9", append(v.Finalizers, "external-attacher/d-example-com", "example.com/keep")
	for _, c := range []struct {
		protects bool
		left     []string
	}{{true, []string{"example.com/keep"}}, {false, []string{"kubernetes.io/pv-protection", "example.com/keep"}}} {
		before, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		patch, err := json.Marshal(Forgotten(v, c.protects))
		if err != nil {
			t.Fatal(err)
		}
		text, err := strategicpatch.StrategicMergePatch(before, patch, v)
		after := &corev1.PersistentVolume{}
		if err := errors.Join(err, json.Unmarshal(text, after)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(after.Finalizers, c.left) || !strings.Contains(string(patch), `"uid":"u9"`) {
			t.Errorf("%v: %s leaves %v", c.protects, patch, after.Finalizers)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("${pvc.name}-$x-$$-${")
	f.Fuzz(func(t *testing.T, template string) {
		got, err := Expand(template, map[string]string{"pvc.name": "data"})
		if err == nil && strings.Contains(template, "${pvc.name}") && !strings.Contains(got, "data") {
			t.Errorf("%q became %q", template, got)
		}
	})
}
