package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func clones(source string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
	}
}

// TestManyClonesOfOneClaim: the source is written once for all clones, and no clone fails.
func TestManyClonesOfOneClaim(t *testing.T) {
	p := newPlane(t)
	p.createClass("fast")
	p.createClaim("source", "fast")
	p.waitForBound("source")
	before := len(p.writes.since(0))
	names := []string{"c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"}
	for _, name := range names {
		p.createClaim(name, "fast", clones("source"))
	}
	for _, name := range names {
		p.waitForBound(name)
	}
	written := 0
	for _, w := range p.writes.since(before) {
		if w.path == "/api/v1/namespaces/default/persistentvolumeclaims/source" {
			written++
		}
		if w.code >= 400 {
			t.Errorf("%+v failed", w)
		}
	}
	if written != 1 {
		t.Errorf("the source was written %d times", written)
	}
}
