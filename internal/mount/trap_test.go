package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TestTrapsAreFree: a path with only an autofs mount counts as free; a filesystem mounted over it has its own parents,
// and may be hidden by a mount above.
func TestTrapsAreFree(t *testing.T) {
	infos := []*mountinfo.Info{
		{ID: 1, Parent: 1, Mountpoint: "/"},
		{ID: 2, Parent: 1, Mountpoint: "/a", FSType: "autofs"},
		{ID: 3, Parent: 2, Mountpoint: "/a", FSType: "ext4"},
		{ID: 4, Parent: 1, Mountpoint: "/b", FSType: "autofs"},
		{ID: 5, Parent: 1, Mountpoint: "/c/d", FSType: "autofs"},
		{ID: 6, Parent: 5, Mountpoint: "/c/d", FSType: "autofs"},
		{ID: 7, Parent: 6, Mountpoint: "/c/d", FSType: "ext4"},
		{ID: 8, Parent: 1, Mountpoint: "/c", FSType: "tmpfs"},
	}
	left := withoutTraps(infos)
	at := topmost(left, left)
	if len(at) != 4 || at["/a"].ID != 3 || at["/a"].Hidden || !at["/c/d"].Hidden {
		t.Errorf("mounted: %+v", at)
	}
}

// TestBindOverTrap mounts over an automount of the kernel, as systemd has them, and unmounts.
func TestBindOverTrap(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{target: setTrap(t, target), source: false} {
		if trapped, err := Trapped(path); err != nil || trapped != want {
			t.Errorf("an automount is seen: %t, %v; want %t", trapped, err, want)
		}
	}
	if p, mounted, err := At(target); err != nil || mounted {
		t.Errorf("only an automount waits: %+v, %v", p, err)
	}
	_, missing := os.Stat(filepath.Join(target, "file"))
	err := errors.Join(Bind(source, target, ReadOnly), Bind(source, target, ReadOnly))
	_, unseen := os.Stat(filepath.Join(target, "file"))
	if err := errors.Join(err, unseen, Unmount(target)); err != nil || missing == nil {
		t.Fatal(err, missing)
	}
	if points, err := Below(target); err != nil || len(points) != 0 {
		t.Errorf("left: %+v, %v", points, err)
	}
}

// setTrap mounts autofs at a directory, and returns false if the kernel has no autofs. It never triggers a mount,
// because this process belongs to it.
func setTrap(t *testing.T, dir string) bool {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	options := fmt.Sprintf("fd=%d,pgrp=%d,minproto=5,maxproto=5,direct", w.Fd(), unix.Getpgrp())
	err = unix.Mount("trap", dir, "autofs", 0, options)
	if errors.Is(err, unix.ENODEV) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return true
}
