package mount

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disk makes a file of some MiB with a loop device.
func disk(t *testing.T, mib int64) (file, device string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, mib<<20); err != nil {
		t.Fatal(err)
	}
	device, err := new(Loops).Attach(file, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := LoopDetach(file); err != nil {
			t.Error(err)
		}
	})
	return file, device
}

// mounted mounts the device in a new directory until the test ends.
func mounted(t *testing.T, device, fsType string) string {
	t.Helper()
	target := t.TempDir()
	if err := Device(t.Context(), device, target, fsType, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(target); err != nil {
			t.Error(err)
		}
	})
	return target
}

// TestShutDown: a filesystem that the kernel has shut down, as it does after an error, is detected and can be
// unmounted, and after another mount it has its data.
func TestShutDown(t *testing.T) {
	_, device := disk(t, 320)
	if err := Format(t.Context(), device, "xfs"); err != nil {
		t.Fatal(err)
	}
	target := mounted(t, device, "xfs")
	file := filepath.Join(target, "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _, err := At(target)
	if err != nil || ShutDown(p) {
		t.Errorf("shut down %t, %v", ShutDown(p), err)
	}
	shut := exec.CommandContext(t.Context(), "xfs_io", "-x", "-c", "syncfs", "-c", "shutdown", target)
	if out, err := shut.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !ShutDown(p) {
		t.Error("not found out")
	}
	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	if err := Device(t.Context(), device, target, "xfs", nil); err != nil {
		t.Fatal(err)
	}
	if has, err := os.ReadFile(file); err != nil || string(has) != "data" {
		t.Errorf("%q %v", has, err)
	}
}

func TestLoopIsFoundAgain(t *testing.T) {
	file, device := disk(t, 8)
	again, err := new(Loops).Attach(file, false)
	if err != nil || again != device {
		t.Errorf("attached again as %s, %v; want %s", again, err, device)
	}
	if size, err := DeviceSize(device); err != nil || size != 8<<20 {
		t.Errorf("size %d, %v", size, err)
	}
	if err := LoopDetach(file); err != nil {
		t.Fatal(err)
	}
	gone(t, file)
}

// gone waits until a file has no loop device. A process that scans all devices may keep one open for a moment.
func gone(t *testing.T, file string) {
	t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		left, err := LoopFind(file)
		if left == "" && err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("still %s after the detach, %v", left, err)
		}
	}
}

// TestLoopIsSearchedOnce: a device that was just created is found without a search, and for a file without a device
// there is no second search.
func TestLoopIsSearchedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var loops Loops
	device, err := loops.Attach(file, false)
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Base(device)
	info, err := os.Stat(file)
	if seen := loops.seen(idOf(info)); err != nil || !slices.Equal(seen, []string{disk}) {
		t.Errorf("known are %v, %v; want %s", seen, err, disk)
	}
	if sized, err := sizedLoops(); err != nil || !slices.Contains(sized, disk) {
		t.Errorf("searched are %v, %v; want %s", sized, err, disk)
	}
	if err := loops.Detach(file); err != nil {
		t.Fatal(err)
	}
	gone(t, file)
	// Another test may attach it as soon as it is free.
	sized, err := sizedLoops()
	_, free := os.Stat("/sys/block/" + disk + "/loop")
	if err != nil || slices.Contains(sized, disk) && free != nil {
		t.Errorf("searched are %v, %v; not %s", sized, err, disk)
	}
}

// TestLoopThatAnotherHasNow: another program gives the device of a file to another file. The remembered state of the
// device is not trusted.
func TestLoopThatAnotherHasNow(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	for _, file := range files {
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loops, device := givenAway(t, files)
	for _, c := range []struct{ file, device string }{{files[1], device}, {files[0], ""}} {
		if found, err := loops.Find(c.file); err != nil || found != c.device {
			t.Errorf("the device of %s is %q, %v; want %q", c.file, found, err, c.device)
		}
	}
	if err := loops.Detach(files[1]); err != nil {
		t.Error(err)
	}
}

// givenAway returns the device that the first file had, which losetup has given to the second one, and what still
// remembers it.
func givenAway(t *testing.T, files []string) (loops *Loops, device string) {
	t.Helper()
	for range 10 {
		var err error
		loops = new(Loops)
		if device, err = loops.Attach(files[0], false); err != nil {
			t.Fatal(err)
		}
		if found, err := loops.Find(files[1]); err != nil || found != "" {
			t.Errorf("before it has one, the device of %s is %q, %v", files[1], found, err)
		}
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Fatalf("losetup -d %s: %v: %s", device, err, out)
		}
		// Another test may have taken the device in between.
		if exec.Command("losetup", device, files[1]).Run() == nil {
			return loops, device
		}
	}
	t.Fatalf("%s was taken by others ten times", device)
	return nil, ""
}

// TestLoopNumberThatStays: with a kernel that keeps the number of a device when it gives it another file, a device
// remembered with that number is queried.
func TestLoopNumberThatStays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	device, err := new(Loops).Attach(file, false)
	if err != nil {
		t.Fatal(err)
	}
	var loops Loops
	disk := filepath.Base(device)
	loops.learn(disk, sighting{fileID{1, 1}, loopSequence(disk)})
	if found, err := loops.Find(file); err != nil || found != device {
		t.Errorf("the device is %q, %v; want %q", found, err, device)
	}
	if err := loops.Detach(file); err != nil {
		t.Error(err)
	}
}

// TestLoopIsFoundByAnotherContainer: the process that attached a device may have seen the file in a mount that no
// longer exists, which makes the device's own name for the file useless.
func TestLoopIsFoundByAnotherContainer(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for _, step := range []func() error{
		func() error { return unix.Mount("tmpfs", first, "tmpfs", 0, "") },
		func() error { return unix.Mount(first, second, "", unix.MS_BIND, "") },
		func() error { return os.WriteFile(filepath.Join(first, "disk.img"), make([]byte, 1<<20), 0o600) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := Unmount(second); err != nil {
			t.Error(err)
		}
	})
	device, err := new(Loops).Attach(filepath.Join(first, "disk.img"), false)
	if err := errors.Join(err, Detach(first)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(second, "disk.img")
	if found, err := LoopFind(file); err != nil || found != device {
		t.Errorf("the device is %s, not %q: %v", device, found, err)
	}
	if again, err := new(Loops).Attach(file, false); err != nil || again != device {
		t.Errorf("a second device, %s: %v", again, err)
	}
	if err := LoopDetach(file); err != nil {
		t.Error(err)
	}
	gone(t, file)
}

func TestFormatNeverTakesWhatIsThere(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ntfs"); !errors.Is(err, ErrUnknownFS) {
		t.Errorf("unknown type: %v", err)
	}
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Errorf("formatting what is formatted: %v", err)
	}
	if err := Format(t.Context(), device, "xfs"); !errors.Is(err, ErrNotBlank) {
		t.Errorf("another type over it: %v", err)
	}
}

// TestFormatNeedsToRead: a device that cannot be read is not blank, nor is something that
// is not a device.
func TestFormatNeedsToRead(t *testing.T) {
	file, device := disk(t, 8)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel returns errors for blocks beyond the end of the file.
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("blockdev", "--flushbufs", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, at := range []string{device, t.TempDir(), filepath.Join(t.TempDir(), "absent")} {
		if has, err := Probe(t.Context(), at); err == nil {
			t.Errorf("%s holds %q, though it cannot be read", at, has)
		}
		if err := Format(t.Context(), at, "ext4"); err == nil {
			t.Errorf("%s was formatted, though it cannot be read", at)
		}
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("blockdev", "--flushbufs", device).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if has, err := Probe(t.Context(), device); err != nil || has != "ext4" {
		t.Errorf("%s holds %q, %v", device, has, err)
	}
}

// TestExt4GrowsUnmounted: where the kernel does not let it grow mounted, ext4
// grows before it is mounted the next time, and keeps its data.
func TestExt4GrowsUnmounted(t *testing.T) {
	file, device := disk(t, 32)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	target := mounted(t, device, "ext4")
	if err := os.WriteFile(filepath.Join(target, "kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Unmount(target); err != nil {
		t.Fatal(err)
	}
	if err := ExpandUnmounted(t.Context(), device, "ext4"); err != nil {
		t.Fatalf("nothing to grow: %v", err)
	}
	if err := os.Truncate(file, 64<<20); err != nil {
		t.Fatal(err)
	}
	if err := LoopResize(device); err != nil {
		t.Fatal(err)
	}
	if err := ExpandUnmounted(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	if size, err := ext4Size(device); err != nil || size != 64<<20 {
		t.Errorf("the filesystem has %d bytes, %v; want 64 MiB", size, err)
	}
	again := mounted(t, device, "ext4")
	if got, err := os.ReadFile(filepath.Join(again, "kept")); err != nil || string(got) != "data" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestBindAndUnmountMayBeRepeated(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	for range 2 {
		if err := Bind(source, target, ReadOnly); err != nil {
			t.Fatal(err)
		}
	}
	if points, err := Below(target); err != nil || len(points) != 1 || !points[0].ReadOnly {
		t.Errorf("mounts %v, %v; want one, read-only", points, err)
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); err == nil {
		t.Error("a read-only bind was written to")
	}
	if err := Bind(t.TempDir(), target, 0); !errors.Is(err, ErrOccupied) {
		t.Errorf("another bind over it: %v", err)
	}
	if err := Remove(target); err == nil {
		t.Error("a mount was removed")
	}
	for range 2 {
		if err := Unmount(target); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRemoveTakesNothingThatHoldsAnything(t *testing.T) {
	dir := t.TempDir()
	full, empty := filepath.Join(dir, "full"), filepath.Join(dir, "empty")
	for path, data := range map[string]string{full: "data", empty: ""} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if Remove(full) == nil || Remove(dir) == nil {
		t.Error("something that holds something was removed")
	}
	for range 2 {
		if err := Remove(empty); err != nil {
			t.Error(err)
		}
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"bind":     Bind(t.TempDir(), link, 0),
		"unmount":  Unmount(link),
		"remove":   Remove(link),
		"relative": Unmount("somewhere"),
		"dots":     Unmount(dir + "/../x"),
	} {
		if !errors.Is(err, ErrNotPlain) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
