package provisioner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestRefusals: two nodes that are both full are not asked in turn without a
// pause (S4-035).
func TestRefusals(t *testing.T) {
	a, now := newAttempts(controller.Pace{}), time.Unix(0, 0)
	on := func(node, version string) string {
		in := provision.Intent{
			Claim: corev1.ObjectReference{UID: "u", ResourceVersion: version}, Requisite: []topology.Segment{{"host": node}},
		}
		return in.Request()
	}
	want := func(request string, left time.Duration) {
		t.Helper()
		if got := a.left("u", request, now); got != left {
			t.Errorf("%s waits for %v, not %v", request, got, left)
		}
	}
	want(on("a", "1"), 0)
	a.refuse("u", on("a", "1"), now)
	want(on("a", "2"), firstPause)
	want(on("b", "2"), 0)
	a.refuse("u", on("b", "2"), now)
	want(on("b", "3"), 2*firstPause)
	for range 20 {
		a.refuse("u", on("a", "3"), now)
	}
	want(on("a", "4"), lastPause)
	now = now.Add(lastPause)
	want(on("a", "4"), 0)
	a.pace.RetryMax = time.Second
	a.refuse("u", on("c", "1"), now)
	want(on("c", "1"), time.Second)
	a.forgetRefusals()
	now = time.Unix(0, 0)
	want(on("b", "5"), 0)
	if len(a.all) > 0 {
		t.Errorf("nothing is known, and %v is kept", a.all)
	}
}

// TestAHandleThatIsBeingSaved belongs to the volume that is saved with it first.
func TestAHandleThatIsBeingSaved(t *testing.T) {
	p := &provisioner{attempts: newAttempts(controller.Pace{})}
	kubetest.NewAPI(t).Begin(func(env controller.Env) *controller.Controller {
		p.volumes = env.Caches.WriteVolumes(env.Client)
		return &controller.Controller{Declaration: Declaration()}
	})
	first, second := &provision.Intent{Driver: driverName, Name: "first"},
		&provision.Intent{Driver: driverName, Name: "second"}
	first.Claim.UID, second.Claim.UID = "u-first", "u-second"
	wants := func(in *provision.Intent, handle, taken string) (release func()) {
		t.Helper()
		got, release := p.holdHandle(in, handle)
		if got != taken {
			t.Errorf("%s is taken by %q, not by %q", handle, got, taken)
		}
		return release
	}
	release := wants(first, "h", "")
	wants(second, "h", "first")()
	wants(second, "another", "")
	p.attempts.release(handleOf(second, "h"), second)
	wants(second, "h", "first") // what did not have it did not give it back
	release()
	wants(second, "h", "")
}
