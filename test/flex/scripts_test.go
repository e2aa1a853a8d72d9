package flex

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/test/internal/plane"
)

// TestFlexScripts runs the scripts in testdata/flex with the built volplane and without a control plane,
// since drivers can be installed for any host.
func TestFlexScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "flex"),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(plane.Bin("volplane"))+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
	})
}
