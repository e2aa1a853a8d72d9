package nodes

import (
	"testing"

	"volplane.dev/volplane/test/internal/planetest"
)

// TestScripts runs testdata/nodes and testdata/health, each against a control plane of its own, which another node
// joins.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"nodes", "health"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			planetest.Scripts(t, planetest.Start(t), kind)
		})
	}
}
