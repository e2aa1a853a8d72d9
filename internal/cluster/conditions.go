package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodCondition returns a Pod's condition of a type, nil if it has none.
func PodCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// IsTrue says whether a Pod has a condition, and it is true. One that is unknown is neither true nor false.
func IsTrue(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionTrue }

// IsFalse says whether a Pod has a condition, and it is false.
func IsFalse(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionFalse }
