package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/test/internal/plane"
)

// TestScripts runs testdata/*/*.txtar against one control plane, with an unmodified kubectl and with the
// built volplane in PATH. Each script has its own namespace $NS.
func TestScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "kubectl", "volplane", "verbs", "snapshots", "groups", "attributes", "populators", "why", "watch",
		"refused", "nodes", "start", "orphans", "drivers", "health")
}

// TestPluginScripts runs those of kubectl's plugin, which have claims that wait for ever.
func TestPluginScripts(t *testing.T) {
	t.Parallel()
	scripts(t, "plugin")
}

func scripts(t *testing.T, kinds ...string) {
	t.Helper()
	p := startPlane(t)
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:                 filepath.Join("testdata", kind),
				RequireExplicitExec: true,
				Cmds:                map[string]func(*testscript.TestScript, bool, []string){"until": runUntil},
				Setup: func(e *testscript.Env) error {
					e.Setenv("KUBECONFIG", p.Kubeconfig())
					e.Setenv("PATH", filepath.Dir(plane.Bin("kubectl"))+string(os.PathListSeparator)+e.Getenv("PATH"))
					e.Setenv("HOME", e.WorkDir)
					e.Setenv("DATA_DIR", p.Dir)
					e.Setenv("METRICS", plane.FreeAddress("127.0.0.1"))
					e.Setenv("GOCSI_MOCK", plane.Bin("gocsi-mock"))
					e.Setenv("CSI_ATTACHER", plane.Bin("csi-attacher"))
					e.Setenv("HELLO_POPULATOR", plane.Bin("hello-populator"))
					e.Setenv("LISTEN", client.CoreV1().RESTClient().Get().URL().Host)
					return nobodysDir(e)
				},
			})
		})
	}
}

// nobodysDir creates a directory of a user without rights.
func nobodysDir(e *testscript.Env) error {
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	e.Defer(func() { _ = os.RemoveAll(dir) })
	e.Setenv("NOBODY_DIR", dir)
	const nobody = 65534
	return os.Chown(dir, nobody, nobody)
}
