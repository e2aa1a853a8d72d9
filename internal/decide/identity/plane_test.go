package identity

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestFirstPlane: the first control plane is that with the oldest Node, whoever leads, and whatever else joins.
func TestFirstPlane(t *testing.T) {
	node := func(name string, minute int, plane bool) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)),
		}}
		if plane {
			n.Annotations = map[string]string{volume.AnnControlPlane: "yes"}
		}
		return n
	}
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		want  string
	}{
		"no nodes":                    {nil, ""},
		"no control planes":           {[]*corev1.Node{node("a", 1, false)}, ""},
		"the oldest":                  {[]*corev1.Node{node("a", 3, true), node("b", 2, true), node("c", 4, true)}, "b"},
		"a node without one is older": {[]*corev1.Node{node("a", 1, false), node("b", 2, true)}, "b"},
		"made in one second":          {[]*corev1.Node{node("b", 1, true), node("a", 1, true)}, "a"},
		"the first one was given up":  {[]*corev1.Node{node("b", 2, true), node("c", 3, true)}, "b"},
		"it has come back as another": {[]*corev1.Node{node("a", 9, true), node("b", 2, true)}, "b"},
	} {
		if got := FirstPlane(c.nodes); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
