package doors

import (
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

const otherNode = "node2"

// nodeAgent serves the plugin from the agent of another host, which has volumes of its own.
func nodeAgent(w *dockerHost) []string {
	w.t.Helper()
	invitation, err := w.plane.Invite(otherNode)
	if err != nil {
		w.t.Fatal(err)
	}
	return []string{
		"node", "--join", invitation, "--data-dir", w.path(otherNode), "--kubeconfig", w.plane.Kubeconfig(),
		"--docker=" + w.socket,
	}
}

// TestDockerOfANodeAgent: the docker of a host that has joined a control plane gets volumes of this host. Its
// containers continue while the agent and the control plane are killed, run again when docker does, and nothing is left
// on the host at the end.
func TestDockerOfANodeAgent(t *testing.T) {
	t.Parallel()
	w := newDockerHost(t, nodeAgent)
	w.startDocker()
	w.docker("import", w.path("image.tar"), image)
	w.volume("far")
	w.sleeps("far-a", "far", "--restart", "always")
	w.sleeps("far-b", "far")
	if got := w.docker("volume", "inspect", "-f", "{{.Status.why}} {{.Status.node}}", "far"); got !=
		"it is mounted "+otherNode {
		t.Errorf("the status is %q", got)
	}
	w.docker("rm", "-f", "far-b")
	w.plugin.Kill()
	w.intact("far-a", "far")
	w.restartPlugin()
	w.plane.Kill()
	w.intact("far-a", "far")
	w.startPlane()
	w.engine.Stop()
	w.restartDocker()
	w.running("far-a")
	w.intact("far-a", "far")
	w.docker("rm", "-f", "far-a")
	w.gone("far")
	w.end()
	host := &plane.Plane{Dir: w.path(otherNode)}
	testkit.Eventually(t, patience, func() string {
		mounts, err := host.Mounts()
		return strings.Join(append(mounts, host.Loops()...), "\n") + errorText(err)
	})
}
