package placement

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Selects says whether a node selector matches a node: one of its terms must,
// with all its expressions. No selector matches every node; one without terms
// matches none.
func Selects(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil {
		return true
	}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		return all(t.MatchExpressions, n.Labels) && all(t.MatchFields, map[string]string{"metadata.name": n.Name})
	})
}

func all(exprs []corev1.NodeSelectorRequirement, labels map[string]string) bool {
	for _, e := range exprs {
		if !matches(e, labels) {
			return false
		}
	}
	return true
}

func matches(e corev1.NodeSelectorRequirement, labels map[string]string) bool {
	value, has := labels[e.Key]
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if !has || len(e.Values) != 1 {
			return false
		}
		have, err1 := strconv.ParseInt(value, 10, 64)
		want, err2 := strconv.ParseInt(e.Values[0], 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		return e.Operator == corev1.NodeSelectorOpGt && have > want || e.Operator == corev1.NodeSelectorOpLt && have < want
	}
	return false
}
