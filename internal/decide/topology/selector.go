package topology

import (
	"cmp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Selects says whether a node selector matches a node: all expressions of one of its terms must
// match. A nil selector matches every node, a selector without terms none.
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
	case corev1.NodeSelectorOpGt:
		return compare(value, e.Values) > 0
	case corev1.NodeSelectorOpLt:
		return compare(value, e.Values) < 0
	}
	return false
}

// compare compares a label's value with the only value of an expression. It returns 0 if they are
// equal, or if one of them is missing or not a number.
func compare(value string, want []string) int {
	if len(want) != 1 {
		return 0
	}
	a, err1 := strconv.ParseInt(value, 10, 64)
	b, err2 := strconv.ParseInt(want[0], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return cmp.Compare(a, b)
}
