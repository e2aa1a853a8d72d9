package nodelife_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/testkit/golden"
)

func TestDeadPods(t *testing.T) {
	const key = corev1.TaintNodeOutOfService
	node := func(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: taints}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	evict := corev1.Taint{Key: key, Value: "off", Effect: corev1.TaintEffectNoExecute}
	pods := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}, {
		ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &metav1.Time{}},
	}}
	for name, o := range map[string]corev1.Toleration{
		"all":    {Operator: corev1.TolerationOpExists},
		"key":    {Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		"value":  {Key: key, Value: "off"},
		"other":  {Key: key, Value: "on"},
		"effect": {Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		"not":    {Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists},
		"bare":   {Value: "off"},
	} {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{o}},
		})
	}
	pressed := node(corev1.ConditionFalse, evict)
	pressed.Status.Conditions = append(
		[]corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}}, pressed.Status.Conditions...)
	var out strings.Builder
	for _, c := range []struct {
		argues string
		node   *corev1.Node
		pods   []*corev1.Pod
	}{
		{"what becomes of the Pods of a Node that is gone is decided elsewhere", nil, pods},
		{"a node that is only not ready may be alive", node(corev1.ConditionUnknown), pods},
		{
			"another taint says nothing",
			node(corev1.ConditionUnknown, corev1.Taint{Key: "off", Effect: corev1.TaintEffectNoExecute}), pods,
		},
		{"an agent that lives contradicts", node(corev1.ConditionTrue, evict), pods},
		{"who does not tolerate it goes, and who is going already", node(corev1.ConditionUnknown, evict), pods},
		{"without a condition nobody contradicts", &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{evict}}}, pods},
		{
			"a taint that evicts nobody ends what is going",
			node(corev1.ConditionFalse, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}), pods,
		},
		{"a node on which nobody has to end", node(corev1.ConditionFalse, evict), nil},
		{"another taint that evicts is none of its own", node(corev1.ConditionFalse, corev1.Taint{
			Key: key, Effect: corev1.TaintEffectNoSchedule,
		}, corev1.Taint{Key: "off", Effect: corev1.TaintEffectNoExecute}), pods},
		{"another condition is not that of the agent", pressed, pods},
	} {
		p := nodelife.DeadPods("n1", c.node, c.pods)
		names := map[string]bool{}
		for _, pod := range p.Delete {
			names[pod.Name] = true
		}
		fmt.Fprintf(&out, "# %s\n----\ndead=%v delete=%v\n%s: %s -> %s\n\n", c.argues, nodelife.Dead(c.node), names,
			p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/dead.txt", out.String())
}

// TestEvictedAt: when the taints of a node drive a Pod away, if ever.
func TestEvictedAt(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	evict := func(key string, second int) corev1.Taint {
		added := metav1.NewTime(at(second))
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	}
	stays := func(key string, seconds ...int64) corev1.Toleration {
		o := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
		for _, n := range seconds {
			o.TolerationSeconds = &n
		}
		return o
	}
	for _, c := range []struct {
		name        string
		taints      []corev1.Taint
		tolerations []corev1.Toleration
		at          time.Time
		going       bool
	}{
		{"no taint", nil, nil, time.Time{}, false},
		{
			"a taint that evicts nobody",
			[]corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}},
			nil,
			time.Time{},
			false,
		},
		{"at once", []corev1.Taint{evict("a", 1)}, nil, time.Time{}, true},
		{"never", []corev1.Taint{evict("a", 1)}, []corev1.Toleration{stays("a")}, time.Time{}, false},
		{"after a time", []corev1.Taint{evict("a", 1)}, []corev1.Toleration{stays("a", 5)}, at(6), true},
		{
			"after the shortest of them",
			[]corev1.Taint{evict("a", 1)},
			[]corev1.Toleration{stays("a", 9), stays("a"), stays("a", 5), stays("b", 1)},
			at(6), true,
		},
		{
			"of two taints the first counts",
			[]corev1.Taint{evict("a", 4), evict("b", 1), evict("c", 9)},
			[]corev1.Toleration{stays("a", 9), stays("b", 8), stays("c", 7)},
			at(9), true,
		},
		{
			"one of two is not tolerated",
			[]corev1.Taint{evict("a", 4), evict("b", 1)},
			[]corev1.Toleration{stays("a", 9)},
			time.Time{},
			true,
		},
		{
			"nobody knows since when",
			[]corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}},
			[]corev1.Toleration{stays("a", 9)},
			time.Time{},
			false,
		},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: c.tolerations}}
		got, going := nodelife.EvictedAt(pod, &corev1.Node{Spec: corev1.NodeSpec{Taints: c.taints}})
		if !got.Equal(c.at) || going != c.going {
			t.Errorf("%s: %v, %t; want %v, %t", c.name, got, going, c.at, c.going)
		}
	}
}
