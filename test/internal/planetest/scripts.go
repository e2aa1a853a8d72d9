package planetest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

// Commands are those that all scripts have in addition to testscript's own.
type Commands = map[string]func(ts *testscript.TestScript, neg bool, args []string)

// Until is the command `until PROGRAM ARGS` of scripts: it runs the program again until it succeeds.
func Until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: until PROGRAM ARGS")
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := testkit.Until(ctx, testkit.Error(func() error { return ts.Exec(args[0], args[1:]...) })); err != nil {
		ts.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
}

// Path returns the PATH of scripts: the built programs come first.
func Path(e *testscript.Env) string {
	return filepath.Dir(plane.Bin("volplane")) + string(os.PathListSeparator) + e.Getenv("PATH")
}

// Scripts runs testdata/KIND/*.txtar against a control plane, with an unmodified kubectl and with the built volplane in
// PATH, side by side.
func Scripts(t *testing.T, p *plane.Plane, kind string) {
	t.Helper()
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", kind),
		RequireExplicitExec: true,
		Cmds:                Commands{"until": Until},
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{
				"KUBECONFIG": p.Kubeconfig(), "PATH": Path(e), "HOME": e.WorkDir, "DATA_DIR": p.Dir,
				"METRICS":    plane.FreeAddress("127.0.0.1"),
				"GOCSI_MOCK": plane.Bin("gocsi-mock"), "CSI_ATTACHER": plane.Bin("csi-attacher"),
				"HELLO_POPULATOR": plane.Bin("hello-populator"),
				"LISTEN":          client.CoreV1().RESTClient().Get().URL().Host,
			} {
				e.Setenv(name, value)
			}
			return nobodysDir(e)
		},
	})
}

// nobodysDir creates a directory of a user without rights, $NOBODY_DIR.
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
