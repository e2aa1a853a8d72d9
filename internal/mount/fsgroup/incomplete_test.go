package fsgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestApplyGoesOn: in a tree with directories that are nested too deeply, and an immutable file, Apply changes the
// other files.
func TestApplyGoesOn(t *testing.T) {
	top := t.TempDir()
	deep := top
	for range maxDepth + 50 {
		deep = filepath.Join(deep, "d")
	}
	must(t, os.MkdirAll(deep, 0o700))
	for _, name := range []string{"a", "z"} {
		must(t, os.WriteFile(filepath.Join(top, name), nil, 0o600))
	}
	want := 1
	if immutable(t, filepath.Join(top, "a")) {
		want++
	}
	err := Apply(t.Context(), top, os.Getgid(), true)
	var left *Incomplete
	if !errors.As(err, &left) || left.Count != want {
		t.Errorf("got %v, want %d left", err, want)
	}
	for path, want := range map[string]os.FileMode{
		top: 0o770, filepath.Join(top, "d", "d"): 0o770, filepath.Join(top, "z"): 0o660,
	} {
		if got := mode(t, path).Perm(); got&want != want {
			t.Errorf("%s has mode %v, want %v", path, got, want)
		}
	}
	must(t, Apply(t.Context(), top, os.Getgid(), false))
}

// fsImmutable is FS_IMMUTABLE_FL of linux/fs.h.
const fsImmutable = 0x10

// immutable makes a file immutable until the test ends, if the host allows that.
func immutable(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	if unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, fsImmutable) != nil {
		return false
	}
	t.Cleanup(func() {
		if f, err := os.Open(path); err == nil {
			_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
			_ = f.Close()
		}
	})
	return true
}
