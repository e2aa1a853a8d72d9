package bridge

import (
	"path/filepath"
	"testing"

	"volplane.dev/volplane/internal/csi/csitest"
	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestSuite plays the suite that every driver of this repository has to pass,
// with a script behind the bridge.
func TestSuite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, driver string
		parameters   map[string]string
	}{
		{"lofs", lofs, map[string]string{"file": "${pv.name}", "size": "32Mi"}},
		{"scratch", scratch, map[string]string{"size": "4Mi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			csitest.Suite(t, func(t *testing.T) csitest.Target {
				w := newBridged(t)
				w.config.Drivers["example.com/"+c.name] = decide.Settings{Provision: true}
				w.install(c.name)
				w.run(c.driver)
				t.Cleanup(w.empty)
				return csitest.Target{
					Socket: w.socket(c.driver), Dir: filepath.Join(w.dir, "pods"), Parameters: c.parameters, AnyID: true,
				}
			})
		})
	}
}
