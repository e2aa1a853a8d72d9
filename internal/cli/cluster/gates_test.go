package cluster

import (
	"testing"

	"volplane.dev/volplane/internal/sidecar/manifest"
)

// TestRightsOfGates: ReferenceGrants are only read by a provisioner whose gate is on.
func TestRightsOfGates(t *testing.T) {
	const gate = "CrossNamespaceVolumeDataSource"
	for _, c := range []struct {
		controller string
		args       []string
		want       int
	}{
		{"provisioner", nil, 0},
		{"provisioner", []string{"--feature-gates=" + gate + "=true"}, 1},
		{"provisioner", []string{"--feature-gates", "Topology=false," + gate + "=true"}, 1},
		{"provisioner", []string{"--feature-gates=" + gate + "=true", "--feature-gates=" + gate + "=false"}, 0},
		{"provisioner", []string{"--feature-gates=" + gate + "=maybe", "--feature-gates"}, 0},
		{"provisioner", []string{"--provisioner-extra=--feature-gates=" + gate + "=true"}, 0},
		{"resizer", []string{"--feature-gates=" + gate + "=true"}, 0},
	} {
		got := withGates(manifest.Options{Controllers: []string{c.controller}, ControllerArgs: c.args})
		if len(got) != c.want || c.want == 1 && (got[0].Resource != "referencegrants" ||
			got[0].Group != "gateway.networking.k8s.io" || len(got[0].Verbs) != 1 || got[0].Verbs[0] != "list") {
			t.Errorf("%s %q: %+v", c.controller, c.args, got)
		}
	}
}
