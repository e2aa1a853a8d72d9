package e2e

import (
	"testing"

	"volplane.dev/volplane/test/internal/planetest"
)

// TestScripts runs scripts of testdata against one control plane, one folder after the other.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "kubectl", "volplane", "verbs", "snapshots", "groups", "attributes", "populators", "watch",
		"orphans")
}

// TestWhyScripts runs those about what cannot be, against another one.
func TestWhyScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "why", "refused", "start")
}

// TestPluginScripts runs those of kubectl's plugin, which have claims that wait forever.
func TestPluginScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "plugin")
}

func scripts(t *testing.T, kinds ...string) {
	t.Helper()
	p := planetest.Start(t)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { planetest.Scripts(t, p, kind) })
	}
}
