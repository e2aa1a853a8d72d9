package provision

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// claimCase is a claim with what is known of it.
type claimCase struct {
	argues string
	facts  ClaimFacts
}

// zoned is a node of the driver, of which a volume can be reached in its zone.
func zoned() topology.Facts {
	return topology.Facts{
		Driver: driver, Claim: "data", Selected: "n1",
		Nodes: map[string]*corev1.Node{
			"n1": {ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
		},
		CSINodes: map[string]*storagev1.CSINode{"n1": {
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: "id1", TopologyKeys: []string{"zone"}}},
			},
		}},
	}
}

// wholeClaims ask for all that a class and a claim can ask for.
func wholeClaims() []claimCase {
	retain, late := corev1.PersistentVolumeReclaimRetain, lateClass()
	full := class(nil)
	full.MountOptions, full.ReclaimPolicy = []string{"noatime"}, &retain
	raw := func(c *corev1.PersistentVolumeClaim) { m := corev1.PersistentVolumeBlock; c.Spec.VolumeMode = &m }
	files := func(c *corev1.PersistentVolumeClaim) { m := corev1.PersistentVolumeFilesystem; c.Spec.VolumeMode = &m }
	huge := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1e30")
	}
	on := func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" }
	secret := func(keys ...string) *storagev1.StorageClass {
		parameters := map[string]string{}
		for n := 0; n < len(keys); n += 2 {
			parameters["csi.storage.k8s.io/provisioner-secret-"+keys[n]] = keys[n+1]
		}
		return class(parameters)
	}
	return []claimCase{
		{"what its class says of the volume is recorded as well", ClaimFacts{
			Claim: claim(raw), Class: full,
			Reachable: true,
		}},
		{"a mode may be given that is the usual one", ClaimFacts{Claim: claim(files), Class: full, Reachable: true}},
		{"a late claim with its node is made for that node's place", ClaimFacts{
			Claim: claim(on), Class: late, Reachable: true, Topology: true, Places: zoned(),
		}},
		{"more than a driver can count is a mistake", ClaimFacts{Claim: claim(huge), Class: class(nil), Reachable: true}},
		{"the namespace of a secret without its name is a mistake", ClaimFacts{
			Claim: claim(), Class: secret("namespace", "x"), Reachable: true,
		}},
		{"its namespace may not be of the claim's user's choice", ClaimFacts{
			Claim: claim(), Class: secret("name", "s", "namespace", "${pvc.name}"), Reachable: true,
		}},
		{"a token without braces is a mistake", ClaimFacts{
			Claim: claim(), Class: secret("name", "$pvc.name}", "namespace", "x"), Reachable: true,
		}},
		{"and one that does not end", ClaimFacts{
			Claim: claim(), Class: secret("name", "${pvc.name", "namespace", "x"), Reachable: true,
		}},
	}
}

// halfDone are claims of which something was done, and perhaps more than is known.
func halfDone() []claimCase {
	named := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pvc-u1" }
	hadOther := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Annotations[volume.AnnBindCompleted] = "other", "yes"
	}
	in, asked := intent(), Claim(ClaimFacts{Claim: claim(), Class: class(nil), Driver: driver, Reachable: true}).Intent
	asked.Claim.ResourceVersion, asked.Begun = "1", metav1.NewTime(time.Unix(1, 0).UTC())
	return []claimCase{
		{"a claim whose volume is saved needs nothing more", ClaimFacts{
			Claim: claim(), Class: class(nil), Reachable: true, Saved: saved("u1"),
		}},
		{"the volume object of another claim ends nothing", ClaimFacts{
			Claim: claim(), Intent: in, Reachable: true, Saved: saved("u2"),
		}},
		{"a claim that is being bound to the volume still wants it", ClaimFacts{
			Claim: claim(named), Intent: in,
			Reachable: true,
		}},
		{"a claim that has another volume does not", ClaimFacts{Claim: claim(hadOther), Intent: in, Reachable: true}},
		{"the same question is asked again as it was, whenever that began", ClaimFacts{
			Claim: claim(), Class: class(nil), Intent: asked, Driver: driver, MayExist: true, Reachable: true,
		}},
	}
}

// TestReopens: only a claim that still wants what a driver may have refused is
// looked at anew.
func TestReopens(t *testing.T) {
	for _, c := range []struct {
		argues string
		facts  ClaimFacts
		want   bool
	}{
		{"it was refused, perhaps", ClaimFacts{Claim: claim(), Intent: intent(), MayExist: true}, true},
		{"it is not known to be refused", ClaimFacts{Claim: claim(), Intent: intent()}, false},
		{"nothing was asked", ClaimFacts{Claim: claim(), MayExist: true}, false},
		{"it is bound to another one", ClaimFacts{Claim: claim(bound), Intent: intent(), MayExist: true}, false},
		{"it is gone", ClaimFacts{Intent: intent(), MayExist: true}, false},
	} {
		if got := c.facts.Reopens(); got != c.want {
			t.Errorf("%s: %v", c.argues, got)
		}
	}
}

// TestUnselected: the selected node goes, all else stays, also on the claim that
// it is made of.
func TestUnselected(t *testing.T) {
	on := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	before := on.DeepCopy()
	if diff := cmp.Diff(claim(), Unselected(on)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, on); diff != "" {
		t.Errorf("what is in the cache was changed (-before +after):\n%s", diff)
	}
}

// TestKindsOfSources: where a claim and a snapshot of the name could be used, only
// what names one of them gets it.
func TestKindsOfSources(t *testing.T) {
	source, v := claim(func(c *corev1.PersistentVolumeClaim) { c.UID, c.Status.Phase = "u9", corev1.ClaimBound }),
		saved("u9")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h9"}
	both := Source{
		Clones: true, Claim: source, Volume: v, Restores: true,
		Snapshot: Snapshot{Installed: true, Exists: true, Ready: true, Bound: true, Driver: driver, Handle: "s9"},
	}
	group, none := volume.GroupSnapshot, ""
	local := func(group *string, kind string) *corev1.TypedLocalObjectReference {
		return &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: "source"}
	}
	ref := func(namespace *string) *corev1.TypedObjectReference {
		return &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "source", Namespace: namespace}
	}
	const asClaim = "PersistentVolumeClaim"
	var out strings.Builder
	for _, c := range []struct {
		argues string
		source *corev1.TypedLocalObjectReference
		ref    *corev1.TypedObjectReference
	}{
		{"a snapshot of its group", local(&group, volume.KindSnapshot), nil},
		{"one of another group is none", local(&none, volume.KindSnapshot), nil},
		{"nor is one of no group", local(nil, volume.KindSnapshot), nil},
		{"nor is anything else of its group", local(&group, asClaim), nil},
		{"a claim has no group", local(nil, asClaim), nil},
		{"or the empty one", local(&none, asClaim), nil},
		{"it may be named twice, as the server does", local(nil, asClaim), ref(nil)},
		{"with a namespace that says nothing", local(nil, asClaim), ref(&none)},
		{"one that is only referred to is not passed over", nil, ref(nil)},
	} {
		asks := claim(func(w *corev1.PersistentVolumeClaim) { w.Spec.DataSource, w.Spec.DataSourceRef = c.source, c.ref })
		fmt.Fprintf(&out, "# %s\n%s", c.argues,
			planText(t, Claim(ClaimFacts{Claim: asks, Class: class(nil), Driver: driver, Reachable: true, Source: both})))
	}
	golden.Equal(t, "testdata/kinds.txt", out.String())
}

// TestWithoutASource: a claim without a source copies nothing.
func TestWithoutASource(t *testing.T) {
	if IsClone(claim()) || IsSnapshot(claim()) {
		t.Error("nothing is a source")
	}
}

// TestRestores: a restore is known by the snapshot's namespace and name, and is
// no copy of a claim.
func TestRestores(t *testing.T) {
	in := &Intent{Claim: corev1.ObjectReference{Namespace: "ns"}, SourceName: "source", Snapshot: "s9"}
	clone := &Intent{Claim: corev1.ObjectReference{Namespace: "ns"}, SourceName: "source", Source: "h9"}
	for _, c := range []struct {
		in              *Intent
		namespace, name string
		want            bool
	}{
		{in, "ns", "source", true}, {in, "other", "source", false}, {in, "ns", "more", false}, {clone, "ns", "source", false},
	} {
		if got := c.in.Restores(c.namespace, c.name); got != c.want {
			t.Errorf("%+v restores %s/%s: %v", c.in, c.namespace, c.name, got)
		}
	}
}

// TestObject: the volume object says all that the intent and the driver say, and
// nothing else.
func TestObject(t *testing.T) {
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Name: name, Namespace: "n"} }
	gold := "gold"
	in := intent()
	in.Bytes, in.FSType, in.Class, in.Modes, in.Options, in.Attributes = 100, "ext4", "fast",
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, []string{"noatime"}, &gold
	in.Secrets = Secrets{
		Provision: ref("provision"), Publish: ref("publish"), Stage: ref("stage"), Node: ref("node"), Expand: ref("expand"),
		NodeExpand: ref("node-expand"), Modify: ref("modify"),
	}
	block := intent()
	block.Bytes, block.Block, block.FSType, block.Reclaim = 100, true, "ext4", corev1.PersistentVolumeReclaimRetain
	readOnly := intent()
	readOnly.Bytes, readOnly.ReadOnly = 100, true
	var out strings.Builder
	for _, c := range []struct {
		argues string
		in     *Intent
		answer Answer
		by     string
	}{
		{"a filesystem with all that can be said of it", in, Answer{
			Handle: "h", Bytes: 200, Context: map[string]string{"k": "v"}, Segments: []topology.Segment{{"zone": "a"}},
		}, ""},
		{"raw block has no filesystem type, what is retained no finalizer of ours; the size asked for stands in for one " +
			"that is not told", block, Answer{Handle: "h"}, ""},
		{"a volume tells who has made it, and that it is only read", readOnly, Answer{
			Handle: "h", Context: map[string]string{"k": "v"},
		}, "1-2-" + driver},
		{"what the driver has said is kept", readOnly, Answer{
			Handle: "h", Context: map[string]string{volume.KeyIdentity: "the driver's"},
		}, "1-2-" + driver},
	} {
		out.WriteString("# " + c.argues + "\n" + golden.Change(t, nil, Object(c.in, c.answer, c.by)) + "\n")
	}
	golden.Equal(t, "testdata/objects.txt", out.String())
	v := Object(in, Answer{Handle: "h"}, "")
	if got := golden.Change(t, v, Disowned(v)); got != "  metadata.finalizers[1]: \""+volume.FinalizerProvisioner+
		"\" is gone\n" {
		t.Error("disowned:", got)
	}
	if diff := cmp.Diff(v, Adopted(Disowned(v))) + cmp.Diff(v, Adopted(v)); diff != "" {
		t.Error("adopted:", diff)
	}
}
