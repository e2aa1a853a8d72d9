package provision

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// madeOn is a volume of claim u1 that was made on a node: as volplane records it, or as upstream's provisioner does.
func madeOn(node, identity string, affinity *corev1.VolumeNodeAffinity) *corev1.PersistentVolume {
	v := saved("u1")
	v.Name = "pvc-u1"
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driver, VolumeHandle: "h", VolumeAttributes: map[string]string{volume.KeyIdentity: identity},
	}
	v.Spec.NodeAffinity = affinity
	if node != "" {
		v.Annotations = map[string]string{volume.AnnProvisionedOn: node}
	}
	return v
}

func at(node string) *corev1.VolumeNodeAffinity {
	return topology.Affinity([]topology.Segment{{"node": node}})
}

// TestContests: which claims a provisioner takes of those that all nodes' compete for.
func TestContests(t *testing.T) {
	here := topology.Segment{"node": "n1"}
	room := func(bytes int64) *int64 { return &bytes }
	allowing := func(node string) *storagev1.StorageClass {
		c := class(nil)
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "node", Values: []string{node}}},
		}}
		return c
	}
	var out strings.Builder
	for _, c := range []struct {
		argues  string
		claim   *corev1.PersistentVolumeClaim
		class   *storagev1.StorageClass
		contest Contest
	}{
		{"a claim that nobody places is taken", claim(), class(nil), Contest{}},
		{"not before the pause is over", claim(), class(nil), Contest{Wait: time.Second}},
		{"with just enough room", claim(), class(nil), Contest{Room: room(5 << 30)}},
		{"not without", claim(), class(nil), Contest{Room: room(5<<30 - 1)}},
		{"a pause comes before the question for room", claim(), class(nil), Contest{Wait: 1, Room: room(0)}},
		{"not if somebody else is to select nodes", claim(), class(nil), Contest{Off: true}},
		{"the class allows this node", claim(), allowing("n1"), Contest{}},
		{"the class is for another node", claim(), allowing("n2"), Contest{Wait: time.Second}},
		{"whoever takes it tells what is wrong with it", claim(selects), class(nil), Contest{}},
		{"a claim that is going is left alone", claim(deleting), class(nil), Contest{}},
		{"a bound claim needs nothing", claim(bound), class(nil), Contest{}},
	} {
		f := ClaimFacts{
			Claim: c.claim, Class: c.class, Driver: driver, Scope: volume.Scope{Node: "n1"}, Contest: &c.contest, Topology: true,
		}
		f.Places = f.PlaceOf(here)
		p := Claim(f)
		fmt.Fprintf(&out, "# %s\n%s, wait %v, full %t: %s: %s -> %s\n", c.argues,
			map[Step]string{Nothing: "nothing", Take: "take"}[p.Step]+" "+p.Node, p.Wait, p.Full, p.Because.Reason,
			p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/contests.txt", out.String())
}

// TestIsContested: nobody competes for a claim that has a node, or whose class lets a Pod choose one.
func TestIsContested(t *testing.T) {
	selected := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n2" })
	other := class(nil)
	other.Provisioner = "other.example.com"
	for name, c := range map[string]struct {
		facts ClaimFacts
		want  bool
	}{
		"at once":              {ClaimFacts{Claim: claim(), Class: class(nil), Driver: driver}, true},
		"selected":             {ClaimFacts{Claim: selected, Class: class(nil), Driver: driver}, false},
		"late":                 {ClaimFacts{Claim: claim(), Class: lateClass(), Driver: driver}, false},
		"without a class":      {ClaimFacts{Claim: claim(), Driver: driver}, false},
		"of another driver":    {ClaimFacts{Claim: claim(), Class: other, Driver: driver}, false},
		"nobody asks":          {ClaimFacts{Claim: claim(), Class: other}, false},
		"gone":                 {ClaimFacts{Class: class(nil), Driver: driver}, false},
		"with an earlier call": {ClaimFacts{Claim: claim(), Class: class(nil), Driver: driver, Intent: intent()}, false},
	} {
		if got := c.facts.IsContested(); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestDelays: they double up to a bound, and are random below.
func TestDelays(t *testing.T) {
	var got []time.Duration
	for attempts := range 5 {
		got = append(got, Delay(20*time.Second, time.Minute, attempts, 0.5))
	}
	got = append(got, Delay(time.Hour, time.Minute, 0, 1), Delay(time.Second, time.Minute, 1<<20, 1), Delay(0, 0, 3, 1))
	if want := "[10s 20s 30s 30s 30s 1m0s 1m0s 0s]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

// TestWhoseVolume: exactly one node deletes a volume, and it is the one that has it.
func TestWhoseVolume(t *testing.T) {
	here, none := topology.Segment{"node": "n1"}, topology.Segment{}
	upstreams := func(node string) string { return "1700000000000-1234-" + driver + node }
	var out strings.Builder
	for _, c := range []struct {
		argues string
		place  topology.Segment
		v      *corev1.PersistentVolume
	}{
		{"recorded here, and here", here, madeOn("n1", "", at("n1"))},
		{"nowhere recorded, and here", here, madeOn("", "", at("n1"))},
		{"upstream's, here", here, madeOn("", upstreams("-n1"), at("n1"))},
		{"upstream's of a time with one controller, here", here, madeOn("", upstreams(""), at("n1"))},
		{"of another node", here, madeOn("n2", "", at("n2"))},
		{"upstream's of another node", here, madeOn("", upstreams("-n2"), at("n2"))},
		{"another node's, which has the same topology", here, madeOn("n2", "", at("n1"))},
		{"upstream's of another node with the same topology", here, madeOn("", upstreams("-n2"), at("n1"))},
		{"recorded here, and accessible elsewhere only", here, madeOn("n1", "", at("n2"))},
		{"accessible everywhere, recorded here", here, madeOn("n1", "", nil)},
		{"accessible everywhere, upstream's of here", here, madeOn("", upstreams("-n1"), nil)},
		{"accessible everywhere, and nowhere recorded", here, madeOn("", "", nil)},
		{"no topology, recorded here", none, madeOn("n1", "", at("n2"))},
		{"no topology, and nowhere recorded", none, madeOn("", "", at("n1"))},
		{"by the record alone: here", nil, madeOn("n1", "", at("n2"))},
		{"by the record alone: not here", nil, madeOn("", "", at("n1"))},
	} {
		fmt.Fprintf(&out, "%t\t%q\t%s\n", IsIn(volume.Scope{Node: "n1"}, c.place, c.v), MadeOn(c.v), c.argues)
	}
	golden.Equal(t, "testdata/whose.txt", out.String())
}

// TestMadeElsewhere: a node that was away undoes what it may have made for a claim whose volume another node has made
// meanwhile, and never touches that one.
func TestMadeElsewhere(t *testing.T) {
	in := intent()
	in.Node, in.Reclaim = "n1", corev1.PersistentVolumeReclaimRetain
	theirs, ours := madeOn("n2", "", at("n2")), madeOn("n1", "", at("n1"))
	for name, c := range map[string]struct {
		v    *corev1.PersistentVolume
		want Step
	}{"theirs": {theirs, Undo}, "ours": {ours, Finish}} {
		f := ClaimFacts{Claim: claim(had), Intent: in, Reachable: true, Scope: volume.Scope{Node: "n1"}, Saved: c.v}
		if p := Claim(f); p.Step != c.want {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if IsVolumeOf(in, theirs) || !IsVolumeOf(in, ours) {
		t.Error("the volume of another node is taken for the intent's")
	}
	for name, c := range map[string]struct {
		answer Answer
		want   bool
	}{
		"the same handle on this node":  {Answer{Handle: "h", Segments: []topology.Segment{{"node": "n1"}}}, false},
		"the same handle, and the same": {Answer{Handle: "h", Segments: []topology.Segment{{"node": "n2"}}}, true},
		"another handle":                {Answer{Handle: "x", Segments: []topology.Segment{{"node": "n2"}}}, false},
	} {
		if got := IsSame(in, c.answer, theirs); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !IsSame(in, Answer{Handle: "h"}, ours) || IsSame(in, Answer{Handle: "h"}, saved("u1")) {
		t.Error("a volume of this node is the one with its handle")
	}
}

// TestForeignAnswers: of what a driver on each node says of volumes that may be another node's, nothing has a volume
// deleted that is not this node's.
func TestForeignAnswers(t *testing.T) {
	in := intent()
	in.Node, in.Requisite = "n1", []topology.Segment{{"node": "n1"}}
	own := Answer{Handle: "h", Segments: []topology.Segment{{"node": "n1"}}}
	others := Answer{Handle: "h", Segments: []topology.Segment{{"node": "n2"}}}
	made := func(a Answer) Creation { return Creation{Answer: no(codes.OK), Volume: a} }
	saved := func(node string, a Answer) Saving {
		there := *in
		there.Node = node
		return Saving{Object: Object(&there, a, "")}
	}
	for name, row := range map[string]struct {
		got  Verdict
		want Next
	}{
		"made here":                             {After(in, made(own)), Save},
		"made elsewhere":                        {After(in, made(others)), Resolve},
		"nobody wants what was made here":       {AfterUndo(in, made(own)), Remove},
		"nor what was made elsewhere":           {AfterUndo(in, made(others)), Resolve},
		"the object was written before":         {AfterSave(in, own, saved("n1", own)), Resolve},
		"another node was first":                {AfterSave(in, own, saved("n2", others)), Remove},
		"another node was first, and shares it": {AfterSave(in, own, saved("n2", own)), Resolve},
	} {
		if row.got.Next != row.want {
			t.Errorf("%s: %v, want %v", name, row.got.Next, row.want)
		}
	}
}
