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
		f.CSINodes[name] = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, TopologyKeys: []string{"zone"}}}}}
	}
	return f
}

func allow(zones ...string) []corev1.TopologySelectorTerm {
	return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: zones}}}}
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
		{"the selected node's segment comes first, the others follow in turn", with(cluster("c", "a", "b"), "n3", nil), "abc", "bca", nil},
		{"nodes of one zone count once", with(cluster("a", "a", "b"), "n1", nil), "ab", "ab", nil},
		{"allowed topologies take the place of the cluster's", with(cluster("a", "b"), "n2", allow("b", "z")), "bz", "bz", nil},
		{"a selected node outside of them is given up", with(cluster("a", "b"), "n1", allow("b")), "", "", ErrNode},
		{"a selected node that is gone is given up", with(cluster("a"), "n9", nil), "", "", ErrNode},
		{"nobody tells anything", with(cluster(), "", nil), "", "", ErrNone},
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
		if !slices.EqualFunc(sorted(p), r.Requisite, func(a, b Segment) bool { return maps.Equal(a, b) }) || zones(again.Preferred) != zones(r.Preferred) {
			t.Fatalf("requisite %s, preferred %s, again %s", zones(r.Requisite), zones(r.Preferred), zones(again.Preferred))
		}
	})
}

func TestAffinity(t *testing.T) {
	if Affinity(nil) != nil {
		t.Error("a volume that is reachable everywhere has an affinity")
	}
	a := Affinity([]Segment{{"zone": "a", "rack": "1"}, {"zone": "b"}})
	if len(a.Required.NodeSelectorTerms) != 2 || len(a.Required.NodeSelectorTerms[0].MatchExpressions) != 2 {
		t.Errorf("affinity %v", a)
	}
}

func TestFlattenCombinesAllValues(t *testing.T) {
	terms := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a", "b"}}, {Key: "rack", Values: []string{"1", "2"}}}}, {}}
	if got := Flatten(terms); len(got) != 4 {
		t.Errorf("got %v, want four segments", got)
	}
}
