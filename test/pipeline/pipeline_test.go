package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs testdata/*.txtar, each of which is a module and the output of .ci/gotest for its tests.
func TestScripts(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{"GOTOOLCHAIN": "local", "SEED": "1"} {
				e.Setenv(name, value)
			}
			for _, name := range []string{"GOCACHE", "GOPATH", "GOFLAGS"} {
				value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
				if err != nil {
					return err
				}
				e.Setenv(name, strings.TrimSpace(string(value)))
			}
			script, err := os.ReadFile(filepath.Join(root, ".ci", "gotest"))
			if err != nil {
				return err
			}
			for _, dir := range []string{".ci", "bin"} {
				if err := os.MkdirAll(filepath.Join(e.WorkDir, dir), 0o700); err != nil {
					return err
				}
			}
			err = os.WriteFile(filepath.Join(e.WorkDir, ".ci", "gotest"), script, 0o700) //nolint:gosec // it is a program
			if err != nil {
				return err
			}
			for name, text := range map[string]string{
				"go.mod": "module example.com/m\n\ngo 1.26.0\n", "bin/go.work": "go 1.26.0\n\nuse ..\n",
			} {
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), []byte(text), 0o600); err != nil {
					return err
				}
			}
			return os.Symlink(filepath.Join(root, "bin", "gotestsum"), filepath.Join(e.WorkDir, "bin", "gotestsum"))
		},
	})
}
