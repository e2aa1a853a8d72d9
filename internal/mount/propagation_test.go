package mount_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// TestKeepApart: a tree that was bound recursively can be unmounted, and stays at its source; other peers stay peers.
func TestKeepApart(t *testing.T) {
	dir := t.TempDir()
	host, bound := filepath.Join(dir, "host"), filepath.Join(dir, "bound")
	if err := errors.Join(
		os.Mkdir(host, 0o700), os.Mkdir(bound, 0o700),
		unix.Mount("x", host, "tmpfs", 0, ""), unix.Mount("", host, "", unix.MS_SHARED, ""),
		os.Mkdir(host+"/sub", 0o700), unix.Mount("x", host+"/sub", "tmpfs", 0, ""),
		unix.Mount(host, bound, "", unix.MS_BIND|unix.MS_REC, ""),
	); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(unix.Unmount(host+"/sub", 0), unix.Unmount(host, 0)) }()
	below := func(where string, want int) {
		t.Helper()
		if left, err := mount.Below(where); err != nil || len(left) != want {
			t.Errorf("below %s: %v, %v; want %d", where, left, err, want)
		}
	}
	// These have no other peers.
	all := []string{host, host + "/sub", bound, bound + "/sub"}
	for _, paths := range [][]string{nil, all, {bound, bound + "/sub"}, {bound, bound + "/sub"}} {
		if err := mount.StopPropagation(paths); err != nil {
			t.Error(err)
		}
		below(bound, 2)
	}
	if err := errors.Join(unix.Unmount(bound+"/sub", 0), unix.Unmount(bound, 0)); err != nil {
		t.Error(err)
	}
	below(bound, 0)
	below(host, 2)
}
