package provisioner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
)

// TestRefusals: two nodes that are both full are not asked in turn without a
// pause (S4-035).
func TestRefusals(t *testing.T) {
	var r refusals
	now := time.Unix(0, 0)
	on := func(node, version string) string {
		in := provision.Intent{
			Claim: corev1.ObjectReference{UID: "u", ResourceVersion: version}, Requisite: []topology.Segment{{"host": node}},
		}
		return in.Request()
	}
	want := func(question string, left time.Duration) {
		t.Helper()
		if got := r.left("u", question, now); got != left {
			t.Errorf("%s waits for %v, not %v", question, got, left)
		}
	}
	want(on("a", "1"), 0)
	r.add("u", on("a", "1"), now)
	want(on("a", "2"), firstPause)
	want(on("b", "2"), 0)
	r.add("u", on("b", "2"), now)
	want(on("b", "3"), 2*firstPause)
	for range 20 {
		r.add("u", on("a", "3"), now)
	}
	want(on("a", "4"), lastPause)
	now = now.Add(lastPause)
	want(on("a", "4"), 0)
	r.retry.RetryMax = time.Second
	r.add("u", on("c", "1"), now)
	want(on("c", "1"), time.Second)
	r.forget("u")
	now = time.Unix(0, 0)
	want(on("b", "5"), 0)
}
