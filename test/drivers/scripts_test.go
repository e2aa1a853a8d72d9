package drivers

import (
	"testing"

	"volplane.dev/volplane/test/internal/planetest"
)

// TestScripts runs testdata/drivers/*.txtar against one control plane, which runs their drivers side by side.
func TestScripts(t *testing.T) {
	t.Parallel()
	planetest.Scripts(t, planetest.Start(t), "drivers")
}
