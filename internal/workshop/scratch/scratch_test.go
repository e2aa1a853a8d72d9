package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// TestRemoveTreeNeverEntersAMount, a bind of the same file system included, and
// follows no link.
func TestRemoveTreeNeverEntersAMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tree, data := filepath.Join(dir, "tree"), filepath.Join(dir, "data")
	at := filepath.Join(tree, "a/mounted")
	file := filepath.Join(data, "file")
	if err := errors.Join(
		os.MkdirAll(at, 0o700), os.Mkdir(data, 0o700), os.WriteFile(file, []byte("data"), 0o600),
		os.Symlink(data, filepath.Join(tree, "link")), unix.Mount(data, at, "", unix.MS_BIND, ""),
	); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	if err := RemoveTree(tree); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a tree with a mount: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("what was mounted is gone")
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemoveTree(tree); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(tree); !os.IsNotExist(err) {
		t.Error("the tree is still there")
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("what a link led to is gone")
	}
}

// TestManyAtOnce: many that start and end at the same time, each removing what killed
// ones have left, remove nothing of one another.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := func() error {
		parent, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer parent.Close()
		d, err := makeIn(parent)
		if err != nil {
			return err
		}
		written := os.WriteFile(d.Root+"/file", nil, 0o600)
		_, err = cleanUpKilled(t.Context(), parent)
		return errors.Join(written, err, os.Remove(d.Root+"/file"), d.CleanUp(t.Context()))
	}
	ended := make(chan error)
	const doctors, rounds = 8, 25
	for range doctors {
		go func() {
			var err error
			for range rounds {
				err = errors.Join(err, one())
			}
			ended <- err
		}()
	}
	for range doctors {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLoopDevicesGo: a driver whose pool is in the directory may leave devices that nothing is mounted of.
func TestLoopDevicesGo(t *testing.T) {
	t.Parallel()
	d, left, err := Make(t.Context(), t.TempDir())
	if err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
	file := filepath.Join(d.Root, "image")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<20)); err != nil {
		t.Fatal(err)
	}
	device, err := new(mount.Loops).Attach(file, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.CleanUp(t.Context()); err != nil {
		t.Error(err)
	}
	if size, err := mount.DeviceSize(device); err == nil && size == 1<<20 {
		t.Errorf("%s is still attached", device)
	}
}
