package etcd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/standalone/etcd"
)

func TestPathWithoutRoomForTheSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	_, err := etcd.Start(t.Context(), etcd.Options{Dir: dir, NoSync: true})
	if !errors.Is(err, etcd.ErrTooLong) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("%v, want %v with the next step", err, etcd.ErrTooLong)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused start left %s: %v", dir, err)
	}
}

func TestDataIsPrivate(t *testing.T) {
	parent, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	dir := filepath.Join(parent, "etcd")
	s, err := etcd.Start(t.Context(), etcd.Options{Dir: dir, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for _, path := range []string{dir, filepath.Join(dir, "member")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v; want mode 0700", path, info, err)
		}
	}
}
