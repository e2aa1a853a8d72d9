package fsgroup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestApply uses the test's own group, the only one to which every user may assign files.
func TestApply(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	must(t, os.WriteFile(secret, nil, 0o600))
	deep := filepath.Join(top, "a", "b")
	must(t, os.MkdirAll(deep, 0o700))
	file := filepath.Join(deep, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink(secret, filepath.Join(deep, "link")))
	must(t, os.Symlink(outside, filepath.Join(top, "dir")))
	must(t, syscall.Mkfifo(filepath.Join(top, "pipe"), 0o600))
	group := os.Getgid()
	for range 2 {
		must(t, Apply(t.Context(), top, group, true))
	}
	for path, want := range map[string]os.FileMode{
		top: 0o770, deep: 0o770, file: 0o660, secret: 0o600, outside: mode(t, outside).Perm(),
	} {
		if got := mode(t, path).Perm(); got&want != want || path == secret && got != want {
			t.Errorf("%s has mode %v, wanted %v", path, got, want)
		}
	}
	if mode(t, deep)&os.ModeSetgid == 0 || mode(t, outside)&os.ModeSetgid != 0 {
		t.Error("the setgid bit is not where it belongs")
	}
}

func TestApplyLeavesWhatIsDone(t *testing.T) {
	top := t.TempDir()
	must(t, Apply(t.Context(), top, os.Getgid(), true))
	file := filepath.Join(top, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, Apply(t.Context(), top, os.Getgid(), false))
	if got := mode(t, file).Perm(); got != 0o600 {
		t.Errorf("the file was changed to %v", got)
	}
	must(t, Apply(t.Context(), top, os.Getgid(), true))
	if got := mode(t, file).Perm(); got != 0o660 {
		t.Errorf("the file was not changed: %v", got)
	}
}

func TestApplyRefusesALink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(t.TempDir(), link))
	if err := Apply(t.Context(), link, os.Getgid(), true); err == nil {
		t.Error("no error")
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Apply(ctx, t.TempDir(), os.Getgid(), true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	return info.Mode()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
