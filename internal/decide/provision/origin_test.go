package provision

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// hereOn is the node n1, as a driver on it says where it is.
func hereOn() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"node": "n1"}}}
}

// shotOn is a snapshot that the controllers of a node have taken.
func shotOn(node string, affinity *corev1.VolumeNodeAffinity) Source {
	return Source{Restores: true, Snapshot: Snapshot{
		Installed: true, Exists: true, Ready: true, Bound: true, Driver: driver, Handle: "s9",
		Kept: Origin{Node: node, Affinity: affinity},
	}}
}

// shotIn is a snapshot whose content says that it is in the segment of a node.
func shotIn(node string) Source {
	s := shotOn("", nil)
	content := &cluster.VolumeSnapshotContent{}
	content.Spec.NodeAffinity = []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "node", Values: []string{node}}},
	}}
	s.Snapshot.Kept = keptOn(cluster.View{}, content)
	return s
}

func restores(c *corev1.PersistentVolumeClaim) {
	group := volume.GroupSnapshot
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: volume.KindSnapshot, Name: "nightly"}
}

// cloneOf is the volume of a claim, which a node has made.
func cloneOf(node string, affinity *corev1.VolumeNodeAffinity) Source {
	source := claim(func(c *corev1.PersistentVolumeClaim) { c.UID, c.Status.Phase = "u9", corev1.ClaimBound })
	v := madeOn(node, "", affinity)
	v.Spec.ClaimRef.UID = "u9"
	return copied(source, v)
}

// TestWhatIsCertain: a selected node is given back only if no volume with the data can be made there. What a content
// says of its snapshot is certain for any driver, and where a volume can be used only beside the driver of each node.
func TestWhatIsCertain(t *testing.T) {
	for _, c := range []struct {
		argues           string
		claim            func(*corev1.PersistentVolumeClaim)
		source           Source
		local, scheduled bool
		back             bool
	}{
		{"a snapshot elsewhere", restores, shotIn("n2"), false, false, true},
		{"a snapshot here", restores, shotIn("n1"), false, false, false},
		{"a snapshot in a place that no node has", restores, shotIn("n9"), false, false, true},
		{"a driver may copy a volume that cannot be used here", clones, cloneOf("", at("n2")), false, false, false},
		{"and restore a snapshot of one", restores, shotOn("n2", at("n2")), false, false, false},
		{"a scheduler has selected a node with a driver of its own", clones, cloneOf("n2", at("n2")), true, true, true},
		{"a scheduler has selected it for a snapshot elsewhere", restores, shotIn("n2"), true, true, true},
		{"nodes may share data, whatever their names are", clones, cloneOf("n2", nil), true, true, false},
		{"but not if volplane selects", clones, cloneOf("n2", nil), true, false, true},
	} {
		f := ClaimFacts{
			Claim: claim(c.claim), Class: class(nil), Driver: driver, Reachable: true, Source: c.source, Here: hereOn(),
			Local: c.local, Scheduled: c.scheduled,
		}
		f.Claim.Annotations[volume.AnnSelectedNode] = "n1"
		if c.local {
			f.Scope.Node = "n1"
		}
		if p := Claim(f); p.Reschedule != c.back || (p.Step == Record) == c.back {
			t.Errorf("%s: %+v", c.argues, p)
		}
	}
}

// TestDataOfNoNode: a volume without a selected node is created where its data are, and not at all if no node has them.
func TestDataOfNoNode(t *testing.T) {
	for node, want := range map[string]string{
		"n1": "",
		"n9": "no allowed topology has the data from which the volume is to be created",
	} {
		f := ClaimFacts{
			Claim: claim(restores), Class: class(nil), Driver: driver, Reachable: true, Source: shotIn(node), Topology: true,
			Places: topology.Facts{
				Driver: driver, Nodes: map[string]*corev1.Node{"n1": hereOn(), "n2": {
					ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"node": "n2"}},
				}},
				CSINodes: map[string]*storagev1.CSINode{"n1": csiNode("n1"), "n2": csiNode("n2")},
			},
		}
		p := Claim(f)
		if want != "" && (p.Step != Nothing || p.Because.Message != want) {
			t.Errorf("data on %s: %+v", node, p)
		}
		if want == "" && (p.Step != Record || fmt.Sprint(p.Intent.Requisite) != "[map[node:n1]]") {
			t.Errorf("data on %s: %+v", node, p)
		}
	}
}

func csiNode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, TopologyKeys: []string{"node"}}, {Name: "without topology"},
		}},
	}
}

// TestOrigins: a driver on node n1 is asked for a volume only if it can read the data of which it is to be made.
func TestOrigins(t *testing.T) {
	foreign := shotOn("n2", nil)
	foreign.Snapshot.Driver = "x.example.com"
	var out strings.Builder
	for _, c := range []struct {
		argues string
		claim  func(*corev1.PersistentVolumeClaim)
		source Source
		// node is the selected one, at is where the driver is asked; nil if a cluster's scheduler has selected it.
		node string
		at   *corev1.Node
	}{
		{"a snapshot of this node", restores, shotOn("n1", nil), "n1", hereOn()},
		{"a snapshot of another node: this one is given back", restores, shotOn("n2", at("n2")), "n1", hereOn()},
		{"a snapshot of another node with the same data", restores, shotOn("n2", at("n1")), "n1", hereOn()},
		{"a snapshot of nobody knows where", restores, shotOn("", nil), "n1", hereOn()},
		{"a snapshot of another driver is told as such", restores, foreign, "n1", hereOn()},
		{"a cluster's scheduler has selected the node", restores, shotOn("n2", nil), "n1", nil},
		{"nobody has selected a node", restores, shotOn("n2", nil), "", hereOn()},
		{"a clone of a volume of this node", clones, cloneOf("n1", at("n1")), "n1", hereOn()},
		{"a clone of a volume of another node", clones, cloneOf("n2", at("n2")), "n1", hereOn()},
		{"a clone of a volume that this node reaches, too", clones, cloneOf("n2", at("n1")), "n1", hereOn()},
		{"a clone of a volume of which only the topology is known", clones, cloneOf("", at("n2")), "n1", hereOn()},
		{"a clone of a volume of another node, without topology", clones, cloneOf("n2", nil), "n1", hereOn()},
		{"an empty volume", unchanged, Source{}, "n1", hereOn()},
	} {
		f := ClaimFacts{
			Claim: claim(c.claim), Class: class(nil), Driver: driver, Reachable: true, Source: c.source, Here: c.at,
			Local: true, Scope: volume.Scope{Node: "n1"},
		}
		if c.node != "" {
			f.Claim.Annotations[volume.AnnSelectedNode] = c.node
		}
		p := Claim(f)
		fmt.Fprintf(&out, "# %s\nasks %t, gives the node back %t: %s: %s -> %s\n", c.argues, p.Step == Record, p.Reschedule,
			p.Because.Reason, p.Because.Message, p.Because.Next)
		if c.node != "" {
			continue
		}
		f.Contest = &Contest{}
		p = Claim(f)
		fmt.Fprintf(&out, "in a contest: takes it %t, looks again %t: %s\n", p.Step == Take, p.Full, p.Because.Message)
	}
	golden.Equal(t, "testdata/origins.txt", out.String())
}

func unchanged(*corev1.PersistentVolumeClaim) {}

// nodesBy is a kind of which objects are looked up by name only.
type nodesBy[T any] map[string]T

func (m nodesBy[T]) Get(key string) (T, bool) { o, ok := m[key]; return o, ok }
func (m nodesBy[T]) By(string, string) []T    { return nil }
func (m nodesBy[T]) List() []T                { return nil }

// TestKeptOn: a snapshot is on the node that a content names, and can be read in the segment of that node.
func TestKeptOn(t *testing.T) {
	view := cluster.View{
		Nodes:    nodesBy[*corev1.Node]{"n1": hereOn()},
		CSINodes: nodesBy[*storagev1.CSINode]{"n1": csiNode("n1")},
	}
	for _, c := range []struct {
		driver string
		notes  map[string]string
		labels map[string]string
		node   string
		near   bool
	}{
		{driver, map[string]string{volume.AnnProvisionedOn: "n1"}, nil, "n1", true},
		{driver, nil, map[string]string{volume.LabelSnapshotsOf: "n1"}, "n1", true},
		{"without topology", map[string]string{volume.AnnProvisionedOn: "n1"}, nil, "n1", false},
		{"absent", map[string]string{volume.AnnProvisionedOn: "n1"}, nil, "n1", false},
		{driver, map[string]string{volume.AnnProvisionedOn: "n2"}, nil, "n2", false},
		{driver, nil, nil, "", false},
	} {
		content := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Annotations: c.notes, Labels: c.labels}}
		content.Spec.Driver = c.driver
		o := keptOn(view, content)
		near := o.Affinity
		if want := at("n1"); o.Node != c.node || (near != nil) != c.near || c.near && fmt.Sprint(near) != fmt.Sprint(want) {
			t.Errorf("%+v: on %q, %v", c, o.Node, near)
		}
	}
}
