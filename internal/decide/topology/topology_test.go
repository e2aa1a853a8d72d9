package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

const driver = "d.example.com"

// cluster has one node for each zone, n1 in zones[0] and so on.
func cluster(zones ...string) Facts {
	f := Facts{Driver: driver, Claim: "data", Nodes: map[string]*corev1.Node{}, CSINodes: map[string]*storagev1.CSINode{}}
	for i, z := range zones {
		name := fmt.Sprint("n", i+1)
		f.Nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": z}}}
		f.CSINodes[name] = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driver, TopologyKeys: []string{"zone"}}},
		}}
	}
	return f
}

func allow(zones ...string) []corev1.TopologySelectorTerm {
	return []corev1.TopologySelectorTerm{
		{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: zones}}},
	}
}

func zones(all []Segment) string {
	s := ""
	for _, one := range all {
		s += one["zone"]
	}
	return s
}

func TestRequire(t *testing.T) {
	for _, c := range []struct {
		argues               string
		facts                Facts
		requisite, preferred string
		err                  error
	}{
		{
			"the selected node's segment comes first, the others follow in turn", with(cluster("c", "a", "b"), "n3", nil),
			"abc", "bca", nil,
		},
		{"nodes of one zone count once", with(cluster("a", "a", "b"), "n1", nil), "ab", "ab", nil},
		{
			"allowed topologies take the place of the cluster's", with(cluster("a", "b"), "n2", allow("b", "z")), "bz", "bz",
			nil,
		},
		{"a selected node outside of them is given up", with(cluster("a", "b"), "n1", allow("b")), "", "", ErrNode},
		{"a selected node that is gone is given up", with(cluster("a"), "n9", nil), "", "", ErrNode},
		{"nobody tells anything", with(cluster(), "", nil), "", "", ErrNone},
		{"only zones that have the data", from(cluster("a", "b", "c"), "b", "c"), "bc", "cb", nil},
		{"of those that the class allows", from(with(cluster("a", "b"), "", allow("a", "b")), "b"), "b", "b", nil},
		{
			"and of those that the selected node can have", from(with(cluster("a", "b", "c"), "n3", nil), "b", "c"), "bc", "cb",
			nil,
		},
		{"no node has the data", from(cluster("a"), "z"), "", "", ErrSource},
	} {
		got, err := Require(c.facts)
		if zones(got.Requisite) != c.requisite || zones(got.Preferred) != c.preferred || !errors.Is(err, c.err) {
			t.Errorf("%s: %s/%s %v", c.argues, zones(got.Requisite), zones(got.Preferred), err)
		}
	}
}

func with(f Facts, selected string, allowed []corev1.TopologySelectorTerm) Facts {
	f.Selected, f.Allowed = selected, allowed
	return f
}

// from has the data of the volume in some zones.
func from(f Facts, zones ...string) Facts {
	f.Source = AffinityOf(allow(zones...))
	return f
}

// TestTermsAndSegments: what a driver says of a place is kept as terms, which match the same nodes.
func TestTermsAndSegments(t *testing.T) {
	segments := []Segment{{"zone": "b", "rack": "1"}, {"zone": "a"}, {}, {"zone": "a"}}
	terms := TermsOf(segments)
	if want := []Segment{{"zone": "a"}, {"rack": "1", "zone": "b"}}; fmt.Sprint(Flatten(terms)) != fmt.Sprint(want) {
		t.Errorf("%v become %v", segments, Flatten(terms))
	}
	for place, want := range map[string]bool{"a": true, "b": false, "c": false} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": place, "rack": "2"}}}
		if Selects(AffinityOf(terms).Required, n) != want {
			t.Errorf("zone %s, rack 2: %v", place, !want)
		}
	}
	if TermsOf(nil) != nil || TermsOf([]Segment{{}}) != nil {
		t.Error("everywhere has terms")
	}
	if Selects(AffinityOf([]corev1.TopologySelectorTerm{{}}).Required, &corev1.Node{}) {
		t.Error("a term without expressions matches a node")
	}
}

// TestStatefulSetSpreads: the claims of one set start in different zones, and
// several claims of one Pod in the same (S1-038).
func TestStatefulSetSpreads(t *testing.T) {
	first := map[string]string{}
	for i := range 3 {
		for _, v := range []string{"data", "log"} {
			f := cluster("a", "b", "c")
			f.Claim = fmt.Sprintf("%s-web-%d", v, i)
			r, err := Require(f)
			if err != nil {
				t.Fatal(err)
			}
			first[f.Claim] = r.Preferred[0]["zone"]
		}
		if a, b := first[fmt.Sprint("data-web-", i)], first[fmt.Sprint("log-web-", i)]; a != b {
			t.Errorf("claims of pod %d start in %s and %s", i, a, b)
		}
	}
	seen := map[string]bool{first["data-web-0"]: true, first["data-web-1"]: true, first["data-web-2"]: true}
	if len(seen) != 3 {
		t.Errorf("three claims of a set start in %v", first)
	}
}

// TestTheHashIsKubernetes' own, so that a set that was begun by another
// provisioner goes on in the same order (S1-038). The figures are FNV-1's,
// computed elsewhere.
func TestTheHashIsKubernetes(t *testing.T) {
	for _, c := range []struct {
		claim       string
		hash, index uint32
	}{
		{"data-web-0", 0x46661985, 0},
		{"log-web-1", 0x46661985, 1},
		{"web-1", 0x46661985, 1},
		{"data", 0x74cb23bd, 0},
		{"my-data", 0x8112fc28, 0},
		{"data-web-4294967296", 0x92109e77, 0},
	} {
		if hash, index := spread(c.claim); hash != c.hash || index != c.index {
			t.Errorf("%s gives %#x and %d", c.claim, hash, index)
		}
	}
}

// TestKeysThatDiffer: a selected node chooses the keys (S1-034); without one the
// segments of all nodes count, each by its own keys (S1-032, S1-033). What a
// node registered and is no label of its is no segment.
func TestKeysThatDiffer(t *testing.T) {
	mixed := func() Facts {
		f := cluster("a", "b", "c")
		f.Nodes["n2"].Labels = map[string]string{"zone": "b", "rack": "1"}
		f.CSINodes["n2"].Spec.Drivers[0].TopologyKeys = []string{"rack", "zone"}
		f.CSINodes["n3"].Spec.Drivers[0].Name = "other.example.com"
		return f
	}
	unlabelled := mixed()
	unlabelled.Nodes["n2"].Labels = map[string]string{"zone": "b"}
	for _, c := range []struct {
		argues string
		facts  Facts
		want   []Segment
	}{
		{"the selected node has one key", with(mixed(), "n1", nil), []Segment{{"zone": "a"}}},
		{"it has two", with(mixed(), "n2", nil), []Segment{{"zone": "b", "rack": "1"}}},
		{"no node is selected", mixed(), []Segment{{"zone": "a"}, {"zone": "b", "rack": "1"}}},
		{"a label is missing", unlabelled, []Segment{{"zone": "a"}}},
	} {
		got, err := Require(c.facts)
		if err != nil || !slices.EqualFunc(got.Requisite, c.want, func(a, b Segment) bool { return maps.Equal(a, b) }) {
			t.Errorf("%s: %v %v", c.argues, got.Requisite, err)
		}
	}
	if _, err := Require(with(unlabelled, "n2", nil)); !errors.Is(err, ErrNode) {
		t.Errorf("a selected node without the label: %v", err)
	}
}

func TestPreferredIsRequisiteInAnotherOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := cluster(rapid.SliceOfN(rapid.StringMatching(`[a-e]`), 1, 9).Draw(t, "zones")...)
		f.Claim = rapid.StringMatching(`[a-z]{1,4}(-[a-z0-9]{1,3}){0,2}`).Draw(t, "claim")
		if rapid.Bool().Draw(t, "late") {
			f.Selected = "n1"
		}
		r, err := Require(f)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Require(f)
		p := slices.Clone(r.Preferred)
		if !slices.EqualFunc(sorted(p), r.Requisite, func(a, b Segment) bool { return maps.Equal(a, b) }) ||
			zones(again.Preferred) != zones(r.Preferred) {
			t.Fatalf("requisite %s, preferred %s, again %s", zones(r.Requisite), zones(r.Preferred), zones(again.Preferred))
		}
	})
}

func TestAffinity(t *testing.T) {
	if Affinity(nil) != nil || Affinity([]Segment{{}}) != nil {
		t.Error("a volume that is reachable everywhere has an affinity")
	}
	a := Affinity([]Segment{{"zone": "a", "rack": "1"}, {"zone": "b"}})
	if len(a.Required.NodeSelectorTerms) != 2 || len(a.Required.NodeSelectorTerms[0].MatchExpressions) != 2 {
		t.Errorf("affinity %v", a)
	}
	for _, term := range a.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
				t.Errorf("expression %v has not one value (S1-104)", e)
			}
		}
	}
}

func TestFlattenCombinesAllValues(t *testing.T) {
	terms := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: "zone", Values: []string{"a", "b"}}, {Key: "rack", Values: []string{"1", "2"}},
	}}, {}}
	if got := Flatten(terms); len(got) != 4 {
		t.Errorf("got %v, want four segments", got)
	}
}
