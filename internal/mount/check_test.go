package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// broken returns a device with an ext4 filesystem that holds a file and a
// directory with a file, and on which then each of these requests was carried
// out by debugfs.
func broken(t *testing.T, requests ...string) (device string) {
	t.Helper()
	_, device = disk(t, 32)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	target := mounted(t, device, "ext4")
	for _, path := range []string{"kept", "dir/kept"} {
		path = filepath.Join(target, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("data"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	for _, request := range requests {
		if err := tool(t.Context(), "debugfs", "-w", "-R", request, device); err != nil {
			t.Fatal(err)
		}
	}
	return device
}

// noticed is what the kernel, or an earlier check, writes when it finds errors: otherwise e2fsck does not check.
const noticed = "set_super_value state 2"

// TestSmallDamageIsMended: files whose blocks and inodes are marked as free would be overwritten.
func TestSmallDamageIsMended(t *testing.T) {
	device := broken(t, "freei kept", "freei dir", "set_super_value free_inodes_count 3", noticed)
	target := mounted(t, device, "ext4")
	for i := range 50 {
		if err := os.Mkdir(filepath.Join(target, fmt.Sprint("new", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kept", "dir/kept"} {
		if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != "data" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	if err := tool(t.Context(), "e2fsck", "-f", "-n", device); err != nil {
		t.Errorf("there are errors still: %v", err)
	}
}

// TestBadDamageIsRefused: serious damage is refused until a user has decided about it; a read-only mount is possible.
func TestBadDamageIsRefused(t *testing.T) {
	device, target := broken(t, "clri dir", noticed), t.TempDir()
	want := "the filesystem on " + device + " has errors that have to be repaired manually: run e2fsck -f " + device
	for range 2 {
		if err := Device(t.Context(), device, target, "ext4", []string{"noatime"}); !errors.Is(err, ErrNeedsPerson) ||
			err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if _, is, err := At(target); is || err != nil {
			t.Errorf("mounted %v, %v", is, err)
		}
	}
	if err := Device(t.Context(), device, target, "ext4", []string{"noatime,ro"}); err != nil {
		t.Errorf("to be read: %v", err)
	}
	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	// It has mended something: 1.
	var exit *exec.ExitError
	if err := tool(t.Context(), "e2fsck", "-f", "-y", device); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatal(err)
	}
	target = mounted(t, device, "ext4")
	if got, err := os.ReadFile(filepath.Join(target, "kept")); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestNoGrowthOfDamage: a filesystem that has to grow before it is mounted is refused as well.
func TestNoGrowthOfDamage(t *testing.T) {
	device := broken(t, "clri dir")
	file, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "loop/backing_file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Truncate(strings.TrimSpace(string(file)), 64<<20), LoopResize(device)); err != nil {
		t.Fatal(err)
	}
	if err := ExpandUnmounted(t.Context(), device, "ext4"); !errors.Is(err, ErrNeedsPerson) {
		t.Error(err)
	}
	if size, err := ext4Size(device); err != nil || size != 32<<20 {
		t.Errorf("the filesystem has %d bytes, %v", size, err)
	}
}

// TestNobodyMountsWhatIsChecked: a check may outlive the process that began it.
func TestNobodyMountsWhatIsChecked(t *testing.T) {
	device, target := broken(t, noticed), t.TempDir()
	other, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := Device(t.Context(), device, target, "ext4", nil); !errors.Is(err, ErrHeld) {
		t.Errorf("mounted while it is checked: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	mounted(t, device, "ext4")
}

// TestWriteProtectedDevice: a filesystem that cannot be repaired can be mounted read-only.
func TestWriteProtectedDevice(t *testing.T) {
	device := broken(t)
	protect := func(flag int) {
		f, err := os.Open(device)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, flag); err != nil {
			t.Fatal(err)
		}
	}
	protect(1)
	defer protect(0)
	target := mounted(t, device, "ext4")
	if got, err := os.ReadFile(filepath.Join(target, "kept")); err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(target, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written: %v", err)
	}
}

// pretend puts a shell script in the place of e2fsck, and returns a function that counts its calls.
func pretend(t *testing.T, script string) (calls func() int) {
	t.Helper()
	dir := t.TempDir()
	script = "#!/bin/sh\necho \"$@\" >>'" + dir + "/calls'\n" + script + "\n"
	//nolint:gosec // it is to be run
	if err := os.WriteFile(filepath.Join(dir, "e2fsck"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
}

// TestWhatChecksSay: only remaining errors and an incomplete check prevent a mount.
func TestWhatChecksSay(t *testing.T) {
	for _, c := range []struct {
		script        string
		person, other bool
	}{
		{script: "exit 0"},
		{script: "exit 1"},
		{script: "exit 3"},
		{script: "echo UNEXPECTED INCONSISTENCY; exit 4", person: true},
		{script: "exit 5", person: true},
		{script: "exit 12", person: true},
		{script: "echo Permission denied while trying to open >&2; exit 8"},
		{script: "exit 16"},
		{script: "exit 128"},
		{script: "exit 32", other: true},
		{script: "kill -KILL $$", other: true},
	} {
		t.Run(c.script, func(t *testing.T) {
			_, device := disk(t, 1)
			calls := pretend(t, c.script)
			err := check(t.Context(), device, "ext4")
			if errors.Is(err, ErrNeedsPerson) != c.person || (err != nil) != (c.person || c.other) || calls() != 1 {
				t.Errorf("%d calls: %v", calls(), err)
			}
		})
	}
}

// unchecked requires that no device is checked, given the filesystem types by device.
func unchecked(t *testing.T, fsTypes map[string]string) {
	t.Helper()
	calls := pretend(t, "exit 4")
	for device, fsType := range fsTypes {
		if err := check(t.Context(), device, fsType); err != nil || calls() != 0 {
			t.Errorf("%s as %s: %d calls, %v", device, fsType, calls(), err)
		}
	}
}

// TestWhatIsMountedIsNotChecked: a mounted device is not checked, wherever it is mounted,
// even if no mount is visible any more and only the kernel still uses it.
func TestWhatIsMountedIsNotChecked(t *testing.T) {
	device := broken(t)
	first, second := mounted(t, device, "ext4"), mounted(t, device, "ext4")
	link := filepath.Join(t.TempDir(), "by-id")
	open, err := os.Open(filepath.Join(first, "kept"))
	if err := errors.Join(err, os.Symlink(device, link)); err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	unchecked(t, map[string]string{device: "ext4", link: "ext4"})
	if err := errors.Join(Detach(first), Unmount(second)); err != nil {
		t.Fatal(err)
	}
	unchecked(t, map[string]string{device: "ext4", link: "ext4"})
}

// TestWhatIsNotChecked: filesystems that e2fsck does not support, and read-only mounts, are not checked.
func TestWhatIsNotChecked(t *testing.T) {
	device, target := broken(t), t.TempDir()
	file := filepath.Join(target, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unchecked(t, map[string]string{file: "ext4", "/dev/none": "ext3"})
	for _, fsType := range []string{"xfs", "btrfs", "vfat", ""} {
		unchecked(t, map[string]string{device: fsType})
	}
	calls := pretend(t, "exit 4")
	if err := errors.Join(Device(t.Context(), device, target, "ext4", []string{"noatime", "ro"}),
		Unmount(target)); err != nil || calls() != 0 {
		t.Errorf("read-only: %d calls, %v", calls(), err)
	}
	for n, fsType := range []string{"ext2", "ext3", "ext4"} {
		if err := check(t.Context(), device, fsType); !errors.Is(err, ErrNeedsPerson) || calls() != n+1 {
			t.Errorf("%s: %d calls: %v", fsType, calls(), err)
		}
	}
}

// TestNoToolForChecks: a host without e2fsck mounts without a check.
func TestNoToolForChecks(t *testing.T) {
	device, dir := broken(t, noticed), t.TempDir()
	program, err := exec.LookPath("mount")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "mount")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	mounted(t, device, "ext4")
}

// TestCheckOutlivesItsCaller: a check does not end with its caller, because the next one would have to start over.
func TestCheckOutlivesItsCaller(t *testing.T) {
	_, device := disk(t, 1)
	calls := pretend(t, "exit 1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := check(ctx, device, "ext4"); err != nil || calls() != 1 {
		t.Errorf("%d calls: %v", calls(), err)
	}
}
