package topology

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSelectors(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a", "cpus": "8"}}}
	for _, c := range []struct {
		key    string
		op     corev1.NodeSelectorOperator
		values []string
		want   bool
	}{
		{"zone", corev1.NodeSelectorOpIn, []string{"a", "b"}, true},
		{"zone", corev1.NodeSelectorOpNotIn, []string{"a"}, false},
		{"rack", corev1.NodeSelectorOpNotIn, []string{"a"}, true},
		{"zone", corev1.NodeSelectorOpExists, nil, true},
		{"zone", corev1.NodeSelectorOpDoesNotExist, nil, false},
		{"cpus", corev1.NodeSelectorOpGt, []string{"4"}, true},
		{"cpus", corev1.NodeSelectorOpLt, []string{"4"}, false},
		{"zone", corev1.NodeSelectorOpGt, []string{"4"}, false},
		{"cpus", corev1.NodeSelectorOpLt, nil, false},
		{"zone", "Nonsense", []string{"a"}, false},
		{"zone", corev1.NodeSelectorOpNotIn, []string{"b"}, true},
		{"rack", corev1.NodeSelectorOpIn, []string{""}, false},
		{"rack", corev1.NodeSelectorOpNotIn, []string{""}, true},
		{"rack", corev1.NodeSelectorOpDoesNotExist, nil, true},
		{"cpus", corev1.NodeSelectorOpLt, []string{"16"}, true},
		{"rack", corev1.NodeSelectorOpLt, []string{"16"}, false},
		{"zone", corev1.NodeSelectorOpLt, []string{"1"}, false},
		{"cpus", corev1.NodeSelectorOpGt, []string{"few"}, false},
	} {
		s := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: c.key, Operator: c.op, Values: c.values}}},
		}}
		if got := Selects(s, n); got != c.want {
			t.Errorf("%s %s %v: %v", c.key, c.op, c.values, got)
		}
	}
	zone := []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}
	for name, want := range map[string]bool{"n1": true, "n2": false} {
		field := []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
		}
		for _, expressions := range [][]corev1.NodeSelectorRequirement{nil, zone} {
			if s := (&corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: field, MatchExpressions: expressions}},
			}); Selects(s, n) != want {
				t.Errorf("the node %s by name, with %v: %v", name, expressions, !want)
			}
		}
	}
	if !Selects(nil, n) || Selects(&corev1.NodeSelector{}, n) {
		t.Error("no selector must match, one without terms must not")
	}
}
