package planes

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestFirst: the first control plane is that with the oldest Node, whichever leads, and whatever else joins.
func TestFirst(t *testing.T) {
	away := []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	node := func(name string, minute int, plane bool, taints ...corev1.Taint) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)),
		}, Spec: corev1.NodeSpec{Taints: taints}}
		if plane {
			n.Annotations = map[string]string{volume.AnnControlPlane: "yes"}
		}
		return n
	}
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		want  string
	}{
		"no nodes":                        {nil, ""},
		"no control planes":               {[]*corev1.Node{node("a", 1, false)}, ""},
		"the oldest":                      {[]*corev1.Node{node("a", 3, true), node("b", 2, true), node("c", 4, true)}, "b"},
		"a node without one is older":     {[]*corev1.Node{node("a", 1, false), node("b", 2, true)}, "b"},
		"made in one second":              {[]*corev1.Node{node("b", 1, true), node("a", 1, true)}, "a"},
		"the first one was given up":      {[]*corev1.Node{node("b", 2, true), node("c", 3, true)}, "b"},
		"the first one is out of service": {[]*corev1.Node{node("a", 1, true, away...), node("b", 2, true)}, "b"},
		"it has come back as another":     {[]*corev1.Node{node("a", 9, true), node("b", 2, true)}, "b"},
	} {
		if got := First(c.nodes); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestPublished: other hosts read the addresses at which they can reach control planes, and no others.
func TestPublished(t *testing.T) {
	node := func(name, says string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if says != "" {
			n.Annotations = map[string]string{volume.AnnControlPlane: says}
		}
		return n
	}
	published := Published([]*corev1.Node{
		node("a", "10.0.0.1:6771,a.example.com:6771"), node("b", "[fd00::2]:6771"), node("joined", ""), node("old", "yes"),
		node("alone", "127.0.0.1:6771,[::1]:6771,localhost:6771,0.0.0.0:6771"),
		node("odd", ",:1,10.0.0.9,10.0.0.9:,10.0.0.1:6771"),
		node("many", strings.Repeat("10.0.0.8:1,", 100)),
	})
	for name, want := range map[string]string{
		"a": "10.0.0.1:6771,a.example.com:6771", "b": "[fd00::2]:6771", "joined": "", "old": "", "alone": "",
		"odd": "10.0.0.1:6771", "many": strings.TrimRight(strings.Repeat("10.0.0.8:1,", mostAddresses), ","),
	} {
		if published[name] != want {
			t.Errorf("%s: %q, want %q", name, published[name], want)
		}
	}
	got := strings.Join(AddressesIn(published), " ")
	if want := "10.0.0.1:6771 10.0.0.8:1 [fd00::2]:6771 a.example.com:6771"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := AddressesIn(map[string]string{"a": "no address", "b": "127.0.0.1:1"}); len(got) > 0 {
		t.Errorf("addresses %v of nothing", got)
	}
}
