package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// loopDevice makes a device of a size.
func loopDevice(t *testing.T, size int64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	device, err := new(mount.Loops).Attach(file, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.LoopDetach(file); err != nil {
			t.Error(err)
		}
	})
	return device, file
}

// TestHostMounts: a driver with attach only is served by the host, with a
// filesystem that is made once, and read-only where that is asked.
func TestHostMounts(t *testing.T) {
	device, _ := loopDevice(t, 32<<20)
	b := newBench(t, attaches, options(time.Minute))
	v := pv()
	for _, v.ReadOnly = range []bool{false, true} {
		b.useDevice(t, device, v)
		if !absent(b.dir()) || !absent(b.deviceDir()) || b.mounted(t) != "" {
			t.Errorf("left: %s", b.mounted(t))
		}
	}
}

func (b *bench) deviceDir() string { return filepath.Join(b.root, "mounts", "pv-1") }

// useDevice mounts a device, twice, writes to it or finds what was written, and
// unmounts it.
func (b *bench) useDevice(t *testing.T, device string, v decide.Volume) {
	t.Helper()
	for range 2 {
		why, err := b.MountDevice(t.Context(), b.deviceDir(), device, v)
		if err != nil || why.Reason != volume.ReasonFlexMounted {
			t.Fatal(why, err)
		}
		why, err = b.Mount(t.Context(), b.dir(), b.deviceDir(), v)
		if err != nil || why.Reason != volume.ReasonFlexMounted {
			t.Fatal(why, err)
		}
	}
	data := filepath.Join(b.dir(), "data")
	err := os.WriteFile(data, []byte("kept"), 0o600)
	if v.ReadOnly != errors.Is(err, unix.EROFS) || !v.ReadOnly && err != nil {
		t.Errorf("read-only %v: %v", v.ReadOnly, err)
	}
	if got, err := os.ReadFile(data); string(got) != "kept" {
		t.Errorf("read-only %v: %q, %v", v.ReadOnly, got, err)
	}
	if _, err := b.Unmount(t.Context(), b.dir()); err != nil {
		t.Error(err)
	}
	if _, err := b.UnmountDevice(t.Context(), b.deviceDir()); err != nil {
		t.Error(err)
	}
}

// TestHostBindsReadOnly: the Pod's own mount is read-only, though the device's is
// not, which Kubernetes' host never did.
func TestHostBindsReadOnly(t *testing.T) {
	b := newBench(t, attaches+"\nmountdevice) "+mountsOne+" ;;\nunmountdevice|"+unmounts, options(time.Minute))
	v := pv()
	if _, err := b.MountDevice(t.Context(), b.deviceDir(), "/dev/x", v); err != nil {
		t.Fatal(err)
	}
	v.ReadOnly = true
	if _, err := b.Mount(t.Context(), b.dir(), b.deviceDir(), v); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir(), "data"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("in the Pod: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.deviceDir(), "data"), nil, 0o600); err != nil {
		t.Errorf("on the device: %v", err)
	}
}

// TestHostNeverShowsItsOwnDisk: without a device nothing is mounted, and then
// nothing is bound (H3).
func TestHostNeverShowsItsOwnDisk(t *testing.T) {
	b := newBench(t, attaches, options(time.Minute))
	deviceDir := filepath.Join(b.root, "mounts", "pv-1")
	why, err := b.MountDevice(t.Context(), deviceDir, "", pv())
	if err != nil || why.Reason != volume.ReasonFlexNothingMounted {
		t.Fatal(why, err)
	}
	_, err = b.Mount(t.Context(), b.dir(), deviceDir, pv())
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != volume.Failed || !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
	if b.mounted(t) != "" || !absent(b.dir()) {
		t.Errorf("left: %s", b.mounted(t))
	}
}

// TestHostFormatsBlankDevicesOnly: what is on a device stays.
func TestHostFormatsBlankDevicesOnly(t *testing.T) {
	device, _ := loopDevice(t, 32<<20)
	b := newBench(t, attaches, options(time.Minute))
	v := pv()
	v.FSType = "xfs"
	if err := mount.Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.MountDevice(t.Context(), filepath.Join(b.root, "d"), device, v); !errors.Is(err, mount.ErrNotBlank) {
		t.Error(err)
	}
	if has, err := mount.Probe(t.Context(), device); has != "ext4" {
		t.Errorf("the device holds %q, %v", has, err)
	}
}

// TestHostChecks: a filesystem with errors is mended before the host mounts it,
// or refused; what a person has to do is in the error.
func TestHostChecks(t *testing.T) {
	device, _ := loopDevice(t, 32<<20)
	b := newBench(t, attaches, options(time.Minute))
	b.useDevice(t, device, pv())
	damage := func(request string) {
		for _, r := range []string{request, "set_super_value state 2"} {
			if out, err := exec.Command("debugfs", "-w", "-R", r, device).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", r, err, out)
			}
		}
	}
	damage("freei data")
	b.useDevice(t, device, pv())
	if out, err := exec.Command("e2fsck", "-f", "-n", device).CombinedOutput(); err != nil {
		t.Errorf("there are errors still: %v: %s", err, out)
	}
	damage("clri lost+found")
	damage("clri data")
	damage("set_inode_field <2> mode 0")
	for range 2 {
		_, err := b.MountDevice(t.Context(), b.deviceDir(), device, pv())
		var e *CallError
		if !errors.As(err, &e) || e.Outcome != volume.Failed || !errors.Is(err, mount.ErrNeedsPerson) ||
			!strings.Contains(err.Error(), "run e2fsck -f "+device) {
			t.Error(err)
		}
		if !absent(b.deviceDir()) || b.mounted(t) != "" {
			t.Errorf("left: %s", b.mounted(t))
		}
	}
}

// TestHostGrows: a filesystem is grown by the host when the driver does not, and
// one that no host can grow is the driver's.
func TestHostGrows(t *testing.T) {
	t.Parallel()
	device, file := loopDevice(t, 320<<20)
	b := newBench(t, attaches, options(time.Minute))
	v := pv()
	v.FSType = "xfs"
	deviceDir := filepath.Join(b.root, "d")
	if _, err := b.MountDevice(t.Context(), deviceDir, device, v); err != nil {
		t.Fatal(err)
	}
	before, err := mount.Stat(deviceDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 400<<20); err != nil {
		t.Fatal(err)
	}
	if err := mount.LoopResize(device); err != nil {
		t.Fatal(err)
	}
	if err := b.ExpandFS(t.Context(), v, device, deviceDir, 400<<20, 320<<20); err != nil {
		t.Error(err)
	}
	if after, err := mount.Stat(deviceDir); err != nil || after.Total <= before.Total {
		t.Errorf("it did not grow: %v, %v, %v", before, after, err)
	}
	if _, err := b.UnmountDevice(t.Context(), deviceDir); err != nil {
		t.Error(err)
	}
	if err := b.ExpandFS(t.Context(), v, device, deviceDir, 2, 1); err == nil {
		t.Error("nothing was mounted, and it grew")
	}
	m := newBench(t, attaches+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(time.Minute))
	if _, err := m.Mount(t.Context(), m.dir(), "", v); err != nil {
		t.Fatal(err)
	}
	if err := m.ExpandFS(t.Context(), v, "", m.dir(), 2, 1); !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

// TestOneMountAtOnce: many concurrent requests for one mount create one, even by Drivers
// before and after an upgrade (H5).
func TestOneMountAtOnce(t *testing.T) {
	o := options(time.Minute)
	o.Calls = &Calls{}
	b := newBench(t, ready+"\nmount) sleep 0.1; "+mountsOne+" ;;\n"+unmounts, o)
	next, err := Probe(t.Context(), b.Name, b.Path, o)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			d := []*Driver{b.Driver, next}[i%2]
			if why, err := d.Mount(t.Context(), b.dir(), "", pv()); err != nil || why.Reason != volume.ReasonFlexMounted {
				t.Error(why, err)
			}
		})
	}
	wg.Wait()
	if got := strings.Count(b.mounted(t), "one at"); got != 1 {
		t.Errorf("mounted %d times: %s", got, b.mounted(t))
	}
	if n := strings.Count(strings.Join(b.lines("calls"), " "), "mount "+b.dir()); n != 1 {
		t.Errorf("called %d times", n)
	}
}

// TestManyAtOnce: volumes do not wait for each other.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const volumes = 40
	b := newBench(t, ready+`
mount) touch "$root/at.$(basename "$2")"; while [ "$(ls "$root" | grep -c '^at')" -lt 40 ]; do sleep 0.02; done; `+
		mountsOne+` ;;
`+unmounts, options(time.Minute))
	var wg sync.WaitGroup
	for i := range volumes {
		wg.Go(func() {
			dir := b.dir() + string(rune('A'+i))
			if _, err := b.Mount(t.Context(), dir, "", pv()); err != nil {
				t.Error(err)
			}
			if _, err := b.Unmount(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left := b.mounted(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestClear: Clear removes what an unfinished mount has left, and nothing else.
func TestClear(t *testing.T) {
	b := newBench(t, ready, options(time.Minute))
	for _, path := range []string{b.dir(), b.dir(), b.dir() + "/a", b.dir() + "-other"} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("t", path, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := b.Clear(t.Context(), b.dir()); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.mounted(t); got != "t at "+b.dir()+"-other" {
		t.Errorf("mounted: %s", got)
	}
}

// TestBoundTreesStayWhole: what a driver has bound with all that is below it is
// unmounted there only, by whomever the driver leaves it to.
func TestBoundTreesStayWhole(t *testing.T) {
	b := newBench(t, ready+`
mount) mount --rbind "$root/tree" "$2"; `+success+" ;;", options(time.Minute))
	tree := filepath.Join(b.root, "tree")
	if err := errors.Join(
		os.Mkdir(tree, 0o700), unix.Mount("t", tree, "tmpfs", 0, ""), unix.Mount("", tree, "", unix.MS_SHARED, ""),
		os.Mkdir(tree+"/sub", 0o700), unix.Mount("t", tree+"/sub", "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	want := b.mounted(t)
	for name, takeAway := range map[string]func() error{
		"unmount": func() error { _, err := b.Unmount(t.Context(), b.dir()); return err },
		"clear":   func() error { return b.Clear(t.Context(), b.dir()) },
	} {
		if _, err := b.Mount(t.Context(), b.dir(), "", pv()); err != nil {
			t.Fatal(err)
		}
		if got := b.mounted(t); got == want {
			t.Fatalf("nothing is bound: %s", got)
		}
		if err := takeAway(); err != nil {
			t.Error(name, err)
		}
		if got := b.mounted(t); got != want {
			t.Fatalf("%s left: %s; want %s", name, got, want)
		}
	}
}

// TestDirectoriesRefused: a directory that cannot be found in the mount table is not
// accepted as a mount point, and no driver is called to mount there.
func TestDirectoriesRefused(t *testing.T) {
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(time.Minute))
	link := filepath.Join(b.root, "link")
	if err := os.Symlink(b.root, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "/", "relative", b.root + "/a/../b", b.root + "/a/", link + "/a"} {
		var e *CallError
		if _, err := b.Mount(t.Context(), dir, "", pv()); !errors.As(err, &e) || !errors.Is(err, mount.ErrNotPlain) {
			t.Errorf("mount at %q: %v", dir, err)
		}
		if _, err := b.Unmount(t.Context(), dir); !errors.As(err, &e) || !errors.Is(err, mount.ErrNotPlain) {
			t.Errorf("unmount at %q: %v", dir, err)
		}
		if err := b.Clear(t.Context(), dir); !errors.Is(err, mount.ErrNotPlain) {
			t.Errorf("clear %q: %v", dir, err)
		}
	}
	if _, err := b.Mount(t.Context(), link+"/a/b", "", pv()); !errors.Is(err, mount.ErrNotPlain) {
		t.Errorf("below a link: %v", err)
	}
	if ops := b.ops(); ops != "" {
		t.Errorf("called: %s", ops)
	}
}

// TestDeadMountsAreMountedAnew: a FUSE daemon that is gone leaves a mount that
// answers nothing; it does not pass for a mounted volume.
func TestDeadMountsAreMountedAnew(t *testing.T) {
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(time.Minute))
	if err := os.MkdirAll(b.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("dead", b.dir(), "fuse", 0, "fd="+strconv.Itoa(fuse)+",rootmode=40000,user_id=0,group_id=0")
	_ = unix.Close(fuse)
	if err != nil {
		t.Fatal(err)
	}
	if why, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err != nil || b.mounted(t) != "one at "+b.dir() {
		t.Errorf("%v, %v: %s", why, err, b.mounted(t))
	}
}

// TestForeignFilesystems: the author of a Pod names the type. What is not of a
// device shows the host's own files, and fuse.NAME starts a program of the host
// as root.
func TestForeignFilesystems(t *testing.T) {
	device, _ := loopDevice(t, 32<<20)
	b := newBench(t, attaches, options(time.Minute))
	for _, fsType := range []string{
		"proc", "sysfs", "devtmpfs", "tmpfs", "overlay", "cgroup2", "fuse", "fuse.touch", "fuseblk.sh", "nfs", "auto",
		"ext4,proc", "none", "../x", "-B",
	} {
		v := pv()
		v.FSType = fsType
		_, err := b.MountDevice(t.Context(), b.deviceDir(), device, v)
		if !errors.Is(err, mount.ErrUnknownFS) || b.mounted(t) != "" {
			t.Errorf("%s: %v; mounted: %s", fsType, err, b.mounted(t))
		}
	}
	if !absent(b.deviceDir()) {
		t.Error("the directory is there")
	}
}
