package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestConditions(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: "A", Status: corev1.ConditionTrue},
		{Type: "B", Status: corev1.ConditionFalse},
		{Type: "C", Status: corev1.ConditionUnknown},
	}}}
	for kind, want := range map[corev1.PodConditionType][2]bool{
		"A": {true, false}, "B": {false, true}, "C": {false, false}, "D": {false, false},
	} {
		c := PodCondition(p, kind)
		if got := [2]bool{IsTrue(c), IsFalse(c)}; got != want {
			t.Errorf("%s: true and false are %v, want %v", kind, got, want)
		}
	}
	PodCondition(p, "B").Message = "m"
	if p.Status.Conditions[1].Message != "m" {
		t.Error("it is a copy")
	}
}
