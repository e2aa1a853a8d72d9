package provision

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// TestClaimFacts: a claim that is to be provisioned is looked at with its class and the
// claim that it copies; one with an intent, with the volume of the intent.
func TestClaimFacts(t *testing.T) {
	c, copies := claim(), claim(clones)
	source := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.Spec.VolumeName = copies.Spec.DataSource.Name, "pv-source"
	})
	sourceVolume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-source"}}
	made, in := saved(c.UID), intent()
	made.Name, in.Name = NameOf(c), NameOf(c)
	made.Spec.ClaimRef.Namespace, made.Spec.ClaimRef.Name = c.Namespace, c.Name
	renamed, foreign := made.DeepCopy(), saved("another")
	renamed.Name, foreign.Name = "other-u1", made.Name
	k := class(nil)
	lists := cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{source}, Volumes: []*corev1.PersistentVolume{sourceVolume},
		Classes: []*storagev1.StorageClass{k},
	}
	with := func(v *corev1.PersistentVolume) cluster.Lists {
		l := lists
		l.Volumes = []*corev1.PersistentVolume{sourceVolume, v}
		return l
	}
	withVolume := with(made)
	for _, one := range []struct {
		argues string
		view   cluster.View
		known  ClaimFacts
		want   ClaimFacts
	}{
		{"the driver is the one that the claim names", lists.View(), ClaimFacts{Claim: c, Driver: "other"}, ClaimFacts{
			Claim: c, Class: k, Driver: ProvisionerOf(c),
		}},
		{"or that was asked for within the process", lists.View(), ClaimFacts{
			Claim: claim(unasked), Driver: "other",
		}, ClaimFacts{
			Claim: claim(unasked), Class: k, Driver: "other",
		}},
		{"its volume may be there", withVolume.View(), ClaimFacts{Claim: c}, ClaimFacts{
			Claim: c, Class: k, Driver: ProvisionerOf(c), Saved: made,
		}},
		{"also if volumes had other names then", with(renamed).View(), ClaimFacts{Claim: c}, ClaimFacts{
			Claim: c, Class: k, Driver: ProvisionerOf(c), Saved: renamed,
		}},
		{"its name may be another claim's", with(foreign).View(), ClaimFacts{Claim: c}, ClaimFacts{
			Claim: c, Class: k, Driver: ProvisionerOf(c), Taken: foreign,
		}},
		{"the source of a copy is looked for", lists.View(), ClaimFacts{Claim: copies}, ClaimFacts{
			Claim: copies, Class: k, Driver: ProvisionerOf(copies), Source: Source{Claim: source, Volume: sourceVolume},
		}},
		{"and may be gone", cluster.Lists{}.View(), ClaimFacts{Claim: copies}, ClaimFacts{
			Claim: copies, Driver: ProvisionerOf(copies),
		}},
		{"an intent is looked at with its volume", withVolume.View(), ClaimFacts{Claim: c, Intent: in}, ClaimFacts{
			Claim: c, Intent: in, Driver: in.Driver, Saved: made,
		}},
		{"also when the claim is gone", withVolume.View(), ClaimFacts{Intent: in, MayExist: true}, ClaimFacts{
			Intent: in, MayExist: true, Driver: in.Driver, Saved: made,
		}},
		{"one that was refused, and may exist, is asked for again", withVolume.View(), ClaimFacts{
			Claim: c, Intent: in, MayExist: true,
		}, ClaimFacts{
			Claim: c, Intent: in, MayExist: true, Class: k, Driver: ProvisionerOf(c), Saved: made,
		}},
	} {
		if diff := cmp.Diff(one.want, ClaimFactsOf(one.view, one.known), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", one.argues, diff)
		}
	}
}

// TestPlacesOf: a requirement follows from all nodes that drivers say anything of.
func TestPlacesOf(t *testing.T) {
	n1, csi1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	gone := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	k := class(nil)
	k.AllowedTopologies = []corev1.TopologySelectorTerm{{}}
	c := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	view := cluster.Lists{Nodes: []*corev1.Node{n1}, CSINodes: []*storagev1.CSINode{csi1, gone}}.View()
	want := topology.Facts{
		Driver: "d", Claim: c.Name, Selected: "n1", Allowed: k.AllowedTopologies,
		Nodes: map[string]*corev1.Node{"n1": n1}, CSINodes: map[string]*storagev1.CSINode{"n1": csi1, "n2": gone},
	}
	if diff := cmp.Diff(want, ClaimFacts{Claim: c, Class: k, Driver: "d"}.PlacesOf(view)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want.Allowed = nil
	if diff := cmp.Diff(want, ClaimFacts{Claim: c, Driver: "d"}.PlacesOf(view)); diff != "" {
		t.Errorf("without a class (-want +got):\n%s", diff)
	}
}

// TestPartial: what needs the driver's word is taken for granted, what does not is not.
func TestPartial(t *testing.T) {
	gold := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr.To("gold") }
	f := ClaimFacts{Claim: claim(clones, gold), Class: class(nil), Reachable: true, Topology: true, Partial: true}
	f.Driver = f.Class.Provisioner
	if p := Claim(f); p.Step != Record || p.Fault {
		t.Errorf("%+v", p)
	}
	f.Claim = claim(clones, gold, selects)
	if p := Claim(f); !p.Fault {
		t.Errorf("a selector: %+v", p)
	}
	f.Claim, f.Partial = claim(clones, gold), false
	if p := Claim(f); !p.Fault {
		t.Errorf("looked at: %+v", p)
	}
}

// TestVolumeFacts: a volume is looked at with the claim of the name in its reference and
// with its attachments.
func TestVolumeFacts(t *testing.T) {
	v, c := saved("u1"), claim()
	v.Name = "pv"
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: "u0"}
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	a.Spec.Source.PersistentVolumeName = &v.Name
	other := a.DeepCopy()
	other.Name, other.Spec.Source.PersistentVolumeName = "other", ptr.To("other")
	lists := cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{c}, Attachments: []*storagev1.VolumeAttachment{a, other},
	}
	if diff := cmp.Diff(VolumeFacts{Volume: v, Claim: c, Attachments: []string{"a"}},
		VolumeFactsOf(lists.View(), v)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}
	twin := v.DeepCopy()
	twin.Name = "other"
	lists.Volumes = []*corev1.PersistentVolume{v, twin}
	if got := VolumeFactsOf(lists.View(), v); got.Sharer != "other" {
		t.Errorf("another object with the handle: %+v", got)
	}
	twin.Status.Phase, twin.Spec.PersistentVolumeReclaimPolicy = corev1.VolumeReleased,
		corev1.PersistentVolumeReclaimDelete
	if got := VolumeFactsOf(lists.View(), v); got.Sharer != "" || len(got.Attachments) != 2 {
		t.Errorf("another object with the handle, which is to be deleted: %+v", got)
	}
	free := v.DeepCopy()
	free.Spec.ClaimRef = nil
	if got := VolumeFactsOf(cluster.Lists{}.View(), free); got.Claim != nil || got.Attachments != nil {
		t.Errorf("%+v", got)
	}
}
