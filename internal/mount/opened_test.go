package mount

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindOpened: a volume is in use by a descriptor that was passed to another process, by a clone that is mounted
// nowhere, and by a loop device, but not by processes that open it through their own path.
func TestFindOpened(t *testing.T) {
	target, elsewhere := tmpfs(t), tmpfs(t)
	if err := os.WriteFile(filepath.Join(target, "image"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	point, _, err := At(target)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		use  func(t *testing.T) (end func())
		want bool
	}{
		"nobody":          {func(*testing.T) func() { return func() {} }, false},
		"a directory":     {func(t *testing.T) func() { return keepOpen(t, target) }, true},
		"another's":       {func(t *testing.T) func() { return keepOpen(t, elsewhere) }, false},
		"a clone":         {func(t *testing.T) func() { return clone(t, target) }, true},
		"another's clone": {func(t *testing.T) func() { return clone(t, elsewhere) }, false},
		"a loop device": {func(t *testing.T) func() {
			device, err := new(Loops).Attach(filepath.Join(target, "image"), true)
			if err != nil {
				t.Fatal(device, err)
			}
			return func() {
				if err := LoopDetach(filepath.Join(target, "image")); err != nil {
					t.Error(err)
				}
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			end := c.use(t)
			found, err := FindOpened(t.Context(), Inside(target))
			if err != nil || found[point.Device] != c.want {
				t.Errorf("in use: %v, %v", found[point.Device], err)
			}
			end()
			if found, err := FindOpened(t.Context(), Inside(target)); err != nil || found[point.Device] {
				t.Errorf("in use after the end: %v, %v", found[point.Device], err)
			}
		})
	}
}

// TestFindOpenedDevice: a process that opens a block device by its own name, as device servers do, does not use the
// volume.
func TestFindOpenedDevice(t *testing.T) {
	_, device := disk(t, 4)
	number, err := DeviceOf(device)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(device, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := Unmount(target); err != nil {
			t.Error(err)
		}
	}()
	for path, want := range map[string]bool{device: false, target: true} {
		end := keepOpen(t, path)
		if found, err := FindOpened(t.Context(), Inside(target)); err != nil || found[number] != want {
			t.Errorf("%s is open: %v, %v", path, found[number], err)
		}
		end()
	}
	if _, err := DeviceOf(filepath.Dir(target)); err == nil {
		t.Error("a directory has the number of a device")
	}
}

// TestParts: a partition belongs to its device, and a device on which another one is built is held.
func TestParts(t *testing.T) {
	_, device := disk(t, 16)
	number, err := DeviceOf(device)
	if err != nil {
		t.Fatal(err)
	}
	if all, held := Parts(number); len(all) != 1 || all[0] != number || held {
		t.Errorf("%v, %v", all, held)
	}
	if all, held := Parts("0:99999"); len(all) != 1 || held {
		t.Errorf("of no device: %v, %v", all, held)
	}
}

func tmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("volume", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// keepOpen makes another process keep a file open.
func keepOpen(t *testing.T, path string) (end func()) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func clone(t *testing.T, path string) (end func()) {
	t.Helper()
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = unix.Close(fd) }
}
