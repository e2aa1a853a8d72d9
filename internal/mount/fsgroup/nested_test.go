package fsgroup

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestApplyStaysInItsMount: a directory and a file of others, on the same filesystem, are bind-mounted in a volume, as
// when one volume is shown in a directory of another. They keep their group and permissions.
func TestApplyStaysInItsMount(t *testing.T) {
	top, theirs := t.TempDir(), t.TempDir()
	dir, file := filepath.Join(theirs, "dir"), filepath.Join(theirs, "file")
	must(t, os.Mkdir(dir, 0o700))
	inner := filepath.Join(dir, "inner")
	for _, path := range []string{file, inner} {
		must(t, os.WriteFile(path, nil, 0o600))
	}
	must(t, os.Mkdir(filepath.Join(top, "dir"), 0o700))
	own := filepath.Join(top, "own")
	for _, path := range []string{own, filepath.Join(top, "file")} {
		must(t, os.WriteFile(path, nil, 0o600))
	}
	for _, path := range []string{dir, file} {
		at := filepath.Join(top, filepath.Base(path))
		must(t, unix.Mount(path, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	}
	must(t, Apply(t.Context(), top, os.Getgid(), true))
	for path, want := range map[string]os.FileMode{own: 0o660, file: 0o600, inner: 0o600, dir: 0o700} {
		if got := mode(t, path).Perm(); got != want {
			t.Errorf("%s has mode %v, want %v", path, got, want)
		}
	}
}
