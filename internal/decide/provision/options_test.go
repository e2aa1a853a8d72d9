package provision

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

// optionCase is a claim under the options of a provisioner.
type optionCase struct {
	argues  string
	options Options
	// change changes the facts, of which the class has the parameters.
	change     func(*ClaimFacts)
	parameters map[string]string
}

// TestOptions: what each option changes in what is asked for.
func TestOptions(t *testing.T) {
	var out strings.Builder
	for _, c := range append(nameCases(), fsTypeCases()...) {
		f := ours(claim(func(c *corev1.PersistentVolumeClaim) { c.UID = uid }), class(c.parameters))
		f.Driver, f.Options = driver, c.options
		if c.change != nil {
			c.change(&f)
		}
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, Claim(f)))
	}
	golden.Equal(t, "testdata/options.txt", out.String())
}

func nameCases() []optionCase {
	taken := func(f *ClaimFacts) {
		f.Taken = &corev1.PersistentVolume{}
		f.Taken.Name = f.Options.NameOf(f.Claim)
	}
	reads := func(modes ...corev1.PersistentVolumeAccessMode) func(*ClaimFacts) {
		return func(f *ClaimFacts) { f.Claim.Spec.AccessModes = modes }
	}
	metadata := map[string]string{"tier": "1"}
	return []optionCase{
		{"a prefix begins the name", Options{NamePrefix: "vol"}, nil, nil},
		{"the UID is cut without its hyphens", Options{NamePrefix: "team-a", NameLength: 10}, nil, nil},
		{"there is no more than all of it", Options{NameLength: 99}, nil, nil},
		{"a cut name may be that of another claim's volume", Options{NameLength: 2}, taken, nil},
		{"a name that no object can have is a mistake", Options{NamePrefix: "Vol_"}, nil, nil},
		{"the driver is told for whom it makes a volume", Options{ExtraMetadata: true}, nil, metadata},
		{"by the name that the volume gets", Options{ExtraMetadata: true, NamePrefix: "v", NameLength: 4}, nil, nil},
		{
			"a volume that is only read is read-only",
			Options{PublishReadOnly: true},
			reads(corev1.ReadOnlyMany), nil,
		},
		{
			"not one that is written, too",
			Options{PublishReadOnly: true},
			reads(corev1.ReadOnlyMany, corev1.ReadWriteOnce), nil,
		},
		{"the selected node's place alone", Options{StrictTopology: true}, inTwoZones, nil},
		{"or all places, that of the node first", Options{}, inTwoZones, nil},
		{"no place if the volume may be anywhere", Options{WithoutImmediateTopology: true}, anywhere, nil},
		{"or all", Options{}, anywhere, nil},
	}
}

func inTwoZones(f *ClaimFacts) { places(f, "n1") }
func anywhere(f *ClaimFacts)   { places(f, "") }

// places gives the driver nodes in two zones, of which one node is selected.
func places(f *ClaimFacts, selected string) {
	all := zoned()
	second := all.Nodes["n1"].DeepCopy()
	second.Labels["zone"] = "b"
	all.Nodes["n2"], all.CSINodes["n2"] = second, all.CSINodes["n1"]
	all.Selected = selected
	all.Strict, all.NotImmediate = f.Options.StrictTopology, f.Options.WithoutImmediateTopology
	f.Topology, f.Places = true, all
	if selected != "" {
		f.Claim.Annotations[volume.AnnSelectedNode] = selected
	}
}

func fsTypeCases() []optionCase {
	all, certain := Options{DefaultFSType: "xfs"}, Options{BlockFSType: "ext4"}
	block := func(f *ClaimFacts) { f.BlockDriver = true }
	with := func(change func(*corev1.PersistentVolumeClaim)) func(*ClaimFacts) {
		return func(f *ClaimFacts) { f.BlockDriver = true; change(f.Claim) }
	}
	shared := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadWriteMany)
	}
	single := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	raw := func(c *corev1.PersistentVolumeClaim) { m := corev1.PersistentVolumeBlock; c.Spec.VolumeMode = &m }
	return []optionCase{
		{"a filesystem type for all volumes", all, nil, nil},
		{"the class knows better", all, nil, map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}},
		{"not by saying nothing", all, nil, map[string]string{"csi.storage.k8s.io/fstype": ""}},
		{"a block device is formatted with the usual filesystem", certain, block, nil},
		{"also one for a single Pod", certain, with(single), nil},
		{"a driver that may have a network filesystem decides itself", certain, nil, nil},
		{"so does one whose volumes several nodes write", certain, with(shared), nil},
		{"raw block has no filesystem", certain, with(raw), nil},
		{"a class may say it in the driver's words", certain, block, map[string]string{"example.com/fs_type": "xfs"}},
		{"or how volumes come to a node", certain, block, map[string]string{"protocol": "NFS"}},
		{"or else something", certain, block, map[string]string{"fast": "yes"}},
	}
}

// TestIntentsOfOtherOptions: an intent is followed whatever the options were when it was written, and never one whose
// volume is another claim's.
func TestIntentsOfOtherOptions(t *testing.T) {
	for name, want := range map[string]bool{
		"pvc-" + uid: true, "team-a-" + uid: true, "pvc-0a1b2c3d4e": true, "x-0": true,
		"pvc-1": false, "-" + uid: false, "-0a": false, "pvc-": false, uid: false, "0a1b2c3d": false,
		"pvc-0a1b2c3d-4e": false, "pvc-" + uid + "0": false,
	} {
		in := intent()
		in.Claim.UID, in.Name = uid, name
		if _, err := ParseIntent(in.String()); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIsObjectOf: a cut name proves nothing.
func TestIsObjectOf(t *testing.T) {
	for _, c := range []struct {
		name string
		of   string
		want bool
	}{
		{"pvc-" + uid, uid, true}, {"pvc-" + uid, "handed over", true}, {"pvc-0a1b", uid, true}, {"pvc-0a1b", "other", false},
	} {
		in, v := intent(), saved("")
		in.Claim.UID, in.Name, v.Spec.ClaimRef.UID = uid, c.name, types.UID(c.of)
		if got := IsObjectOf(in, v); got != c.want {
			t.Errorf("%s of %s: %v", c.name, c.of, got)
		}
	}
}

// TestUnusualTopologies: a strict requirement is met by no other place of the class.
func TestUnusualTopologies(t *testing.T) {
	f := zoned()
	f.Strict = true
	f.Allowed = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: "zone", Values: []string{"b"}},
	}}}
	if got, err := topology.Require(f); err == nil {
		t.Errorf("a node outside of the class's places: %v", got)
	}
	f.Allowed[0].MatchLabelExpressions[0].Values = []string{"b", "a"}
	if got, err := topology.Require(f); err != nil || fmt.Sprint(got) != "{[map[zone:a]] [map[zone:a]]}" {
		t.Errorf("a node in one of them: %v %v", got, err)
	}
}
