package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// inNamespace is the environment variable that makes a test process act as the child in a mount namespace.
const inNamespace = "VOLPLANE_TEST_MOUNT_NAMESPACE"

// TestMountPrograms runs testdata/mount and testdata/nomad with the mount(8) of the system, which finds its helpers in
// /sbin only: in a mount namespace that has them, with another libmount file.
func TestMountPrograms(t *testing.T) {
	if dir := os.Getenv(inNamespace); dir != "" {
		playMounts(t, dir)
		return
	}
	t.Parallel()
	// Names of sockets are short, so the directory's is too.
	dir, err := os.MkdirTemp("", "m-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), inNamespace+"="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := c.CombinedOutput()
	for _, script := range []string{"mount/mount", "nomad/nomad"} {
		if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()+"/"+script) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

func playMounts(t *testing.T, dir string) {
	bin := filepath.Dir(plane.Bin("volplane"))
	top := filepath.Join(dir, "top")
	helpers, work := filepath.Join(top, "sbin"), filepath.Join(top, "work")
	if err := errors.Join(
		os.Mkdir(top, 0o700), unix.Mount("helpers", top, "tmpfs", 0, ""), os.Mkdir(helpers, 0o700), os.Mkdir(work, 0o700),
		os.Symlink(filepath.Join(bin, "volplane"), filepath.Join(helpers, "mount.volplane")),
		os.Symlink(filepath.Join(bin, "volplane"), filepath.Join(helpers, "umount.volplane")),
		unix.Mount("helpers", "/usr/sbin", "overlay", 0, "lowerdir=/usr/sbin,upperdir="+helpers+",workdir="+work),
		os.MkdirAll("/run/mount", 0o755), unix.Mount("utab", "/run/mount", "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	p, err := plane.Start(t.Context(), filepath.Join(dir, "p"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	t.Setenv("TMPDIR", dir)
	nomad, err := filepath.Abs("../../examples/nomad/volplane")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mount", "nomad"} {
		t.Run(kind, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir: filepath.Join("testdata", kind), RequireExplicitExec: true,
				Cmds: planetest.Commands{"until": planetest.Until},
				Setup: func(e *testscript.Env) error {
					e.Setenv("KUBECONFIG", p.Kubeconfig())
					e.Setenv("PATH", strings.Join([]string{bin, e.Getenv("PATH"), "/usr/sbin"}, string(os.PathListSeparator)))
					e.Setenv("HOME", e.WorkDir)
					e.Setenv("VOLPLANE", filepath.Join(bin, "volplane"))
					e.Setenv("NOMAD", nomad)
					return nil
				},
			})
		})
	}
}
