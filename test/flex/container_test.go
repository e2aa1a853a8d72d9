package flex

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// TestFlexInContainer runs the command of the DaemonSet as its container does: as process 1, without
// capabilities, with write access only to the plugin directory and /tmp. The command keeps the driver
// installed and ends when it is asked to (F-055, F-058).
func TestFlexInContainer(t *testing.T) {
	dir := t.TempDir()
	plugins, temporary := filepath.Join(dir, "exec"), filepath.Join(dir, "tmp")
	source, err := filepath.Abs(example("lofs", "lofs"))
	if err := errors.Join(err, os.Mkdir(plugins, 0o755), os.Mkdir(temporary, 0o755)); err != nil {
		t.Fatal(err)
	}
	// A mount below stays writable.
	const container = `set -e
mount --make-rprivate /
` + letGo + `
mount -t proc proc /proc
mount --bind "$1" "$1"
mount --bind "$2" "$2"
mount -o remount,bind,ro /
shift 2
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"`
	cmd := exec.Command("sh", "-c", container, "sh", plugins, temporary,
		plane.Bin("volplane"), "flex", "install", "example.com/lofs", source, "--watch", "--no-init", "--dir", plugins)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + temporary}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// It ends with the thread that starts it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	exe := filepath.Join(plugins, "example.com~lofs", "lofs")
	placed(t, exe, source, ended)
	if err := os.RemoveAll(filepath.Dir(exe)); err != nil {
		t.Fatal(err)
	}
	placed(t, exe, source, ended)
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("asked to stop: %v\n%s", err, &said)
	}
	// Then a container is killed.
	const grace = 30 * time.Second
	if took := time.Since(began); took > grace {
		t.Errorf("it took %v to end", took)
	}
	if _, err := os.Stat(exe); err != nil {
		t.Error(err)
	}
}

// letGo unmounts all block devices in the shell's own mount table, so that their users can release them.
const letGo = `grep ^/dev/ /proc/self/mounts | cut -d' ' -f2 | tac | grep -vx / | xargs -r -n1 umount -l || true`

// placed waits until an installed driver equals its source.
func placed(t *testing.T, exe, source string, ended <-chan error) {
	t.Helper()
	want, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(planetest.Patience)
	for {
		if got, err := os.ReadFile(exe); err == nil && bytes.Equal(got, want) {
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		case <-limit:
			t.Fatal("not in place in time")
		case <-tick.C:
		}
	}
}
