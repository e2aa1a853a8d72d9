package drivers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// TestFuse plays testdata/fuse/*.txtar, each with a control plane of its own: the driver that `volplane driver init`
// writes, but for its mounts, which programs of Debian serve by FUSE. The driver, the programs and the control plane
// are killed.
func TestFuse(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "fuse", "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatal("there are no scripts: ", err)
	}
	table := &foreignTable{rows: map[string]*foreignRow{}}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		table.rows[name] = &foreignRow{script: name}
	}
	testscript.Run(t, testscript.Params{
		Files:               paths,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			if err := setUpForeign(t, e, table); err != nil {
				return err
			}
			for _, name := range []string{"fuse.py", "s3.py"} {
				text, err := os.ReadFile(filepath.Join("testdata", name))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), text, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
		Cmds: planetest.Commands{"life": playLife, "until": planetest.Until},
	})
}

// killServer kills the programs that serve the mounts. The node agent reports it, and the volume is mounted again.
func (l *foreignLife) killServer() error {
	killed := 0
	for _, pid := range plane.ProcessesOf(l.host) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil || strings.TrimSpace(string(name)) != l.server {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("no process %s serves %s", l.server, l.file)
	}
	return l.eventually(func() error {
		if err := l.read(); err != nil {
			return err
		}
		events, err := l.client.CoreV1().Events("").List(l.ctx, metav1.ListOptions{FieldSelector: "reason=MountBroken"})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("the broken mount was not reported")
		}
		return err
	})
}
