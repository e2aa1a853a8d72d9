package socket_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/process/socket"
)

// short makes a directory of a short name: that of t.TempDir may be too long.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestListen: a socket replaces one at which no process answers, and no other.
func TestListen(t *testing.T) {
	path := filepath.Join(short(t), "new", "csi.sock")
	first, err := socket.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]os.FileMode{path: os.ModeSocket | 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(at); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", at, info, err)
		}
	}
	if l, err := socket.Listen(t.Context(), path); l != nil || !errors.Is(err, socket.ErrTaken) ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("a second one: %v", err)
	}
	first.SetUnlinkOnClose(false) // as a process that is killed leaves it
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := socket.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoSocket where there can be none.
func TestNoSocket(t *testing.T) {
	dir := short(t)
	full := filepath.Join(dir, "csi.sock")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		full, filepath.Join(dir, strings.Repeat("n", socket.NameLimit)), "/proc/absent/csi.sock",
	} {
		if l, err := socket.Listen(t.Context(), path); l != nil || err == nil || errors.Is(err, socket.ErrTaken) {
			t.Errorf("%.30s: %v", path, err)
		}
	}
}
