package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/testkit"
)

// TestLookSaysWhatTheTableSays: whichever method is used, the answer is that of the mount table, even with a kernel
// that does not describe single mounts.
func TestLookSaysWhatTheTableSays(t *testing.T) {
	top := newTop(t)
	paths := places(t, top)
	infos, err := readTable()
	if err != nil {
		t.Fatal(err)
	}
	paths["/"] = topmost(infos, infos)["/"].Source
	var table Table
	defer table.Close()
	compare := func() {
		infos, err := readTable()
		if err != nil {
			t.Error(err)
		}
		for path, source := range paths {
			want, mounted, err := reachedIn(infos, path)
			if mounted != (source != "") || want.Source != source {
				t.Errorf("%s: the table has %q, want %q", path, want.Source, source)
			}
			for name, at := range map[string]func(string) (Point, bool, error){
				"At": At, "Look": Look, "Table.At": table.At, "Table.Look": table.Look,
			} {
				if got, is, e := at(path); got != want || is != mounted || errors.Is(e, ErrHidden) != errors.Is(err, ErrHidden) {
					t.Errorf("%s of %s: %+v, %t, %v; the table has %+v, %t, %v", name, path, got, is, e, want, mounted, err)
				}
			}
			comparePlaces(t, &table, path)
		}
	}
	compare()
	OnThreadOfItsOwn(func() {
		if err := denyMountCalls(); err != nil {
			t.Error(err)
			return
		}
		compare()
		if p, _, sure := lookAt(filepath.Join(top, "volume")); sure {
			t.Errorf("without the calls it is sure of %+v", p)
		}
	})
}

// comparePlaces compares the answers about a path and what is below it with the table.
func comparePlaces(t *testing.T, table *Table, path string) {
	t.Helper()
	s, err := table.Snapshot()
	if err != nil {
		t.Error(err)
	}
	below := s.Below(path)
	if got, err := table.LookBelow(path); err != nil || !slices.Equal(got, below) {
		t.Errorf("below %s: %+v, %v; the table has %+v", path, got, err, below)
	}
	if places, err := table.Places([]string{path}); err != nil || places.At[path] != s.At[path] {
		t.Errorf("%s as one place: %+v, %v; the table has %+v", path, places.At[path], err, s.At[path])
	}
	at, is := s.At[path]
	if got, err := table.Mounted(path); got != (is || len(below) > 0) || errors.Is(err, ErrHidden) != at.Hidden {
		t.Errorf("%s is mounted: %t, %v; the table has %+v", path, got, err, below)
	}
}

func newTop(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	t.Cleanup(func() {
		points, err := Below(top)
		if err != nil {
			t.Error(err)
		}
		for i := len(points) - 1; i >= 0; i-- {
			_ = unix.Unmount(points[i].Path, unix.MNT_DETACH)
		}
	})
	return top
}

// places creates, below a directory, every kind of mount that makes a difference, and returns the source of the mount
// at each path.
func places(t *testing.T, top string) map[string]string {
	t.Helper()
	_, device := disk(t, 8)
	if err := tool(t.Context(), "mkfs.ext4", "-q", device); err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return filepath.Join(top, path) }
	for _, dir := range []string{
		"free", "full/dir", "volume", "sub", "ro", "noro", "odd name\\", "twice", "parent", "covered/under", "trap", "set",
	} {
		if err := os.MkdirAll(at(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		unix.Mount(device, at("volume"), "ext4", 0, ""), os.Mkdir(at("volume/dir"), 0o700),
		unix.Mount(at("volume/dir"), at("sub"), "", unix.MS_BIND, ""),
		unix.Mount(at("volume"), at("ro"), "", unix.MS_BIND, ""),
		unix.Mount("", at("ro"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		unix.Mount("noro", at("noro"), "tmpfs", unix.MS_RDONLY, ""),
		unix.Mount("odd source\\ of it", at("odd name\\"), "tmpfs", 0, ""),
		unix.Mount("first", at("twice"), "tmpfs", 0, ""), unix.Mount("second", at("twice"), "tmpfs", 0, ""),
		unix.Mount("outer", at("parent"), "tmpfs", 0, ""), os.Mkdir(at("parent/child"), 0o700),
		unix.Mount("inner", at("parent/child"), "tmpfs", 0, ""), os.Mkdir(at("parent/free"), 0o700),
		unix.Mount("hidden", at("covered/under"), "tmpfs", 0, ""), unix.Mount("cover", at("covered"), "tmpfs", 0, ""),
		os.Mkdir(at("covered/free"), 0o700),
		os.Symlink(at("volume"), at("link")),
		os.WriteFile(at("file"), nil, 0o600), unix.Mount(device, at("file"), "", unix.MS_BIND, ""),
	); err != nil {
		t.Fatal(err)
	}
	setTrap(t, at("trap"))
	setTrap(t, at("set"))
	if err := unix.Mount("set", at("set"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at("set"), unix.MNT_DETACH) })
	return map[string]string{
		at("free"): "", at("missing"): "", at("missing/too"): "", at("full"): "", at("full/dir"): "", top: "",
		at("volume"): device, at("volume/dir"): "", at("sub"): device, at("ro"): device, at("noro"): "noro",
		at("odd name\\"): "odd source\\ of it", at("twice"): "second", at("parent"): "outer", at("parent/child"): "inner",
		at("parent/free"): "", at("covered"): "cover", at("covered/under"): "hidden", at("covered/free"): "",
		at("link"): "", at("link/dir"): "", at("file"): "devtmpfs", at("trap"): "", at("set"): "set",
	}
}

// denyMountCalls makes statmount and listmount fail with ENOSYS for the calling thread.
func denyMountCalls() error {
	const load, ifEqual, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load},
		{Code: ifEqual, K: unix.SYS_STATMOUNT, Jt: 1},
		{Code: ifEqual, K: unix.SYS_LISTMOUNT, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	defer runtime.KeepAlive(filter)
	return errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0),
	)
}

// TestCostDoesNotGrow: a volume is bound, inspected and unmounted without inspecting the other mounts of the host.
func TestCostDoesNotGrow(t *testing.T) {
	defer runtime.UnlockOSThread()
	runtime.LockOSThread()
	top := newTop(t)
	source, target, others := filepath.Join(top, "source"), filepath.Join(top, "target"), filepath.Join(top, "others")
	_, device := disk(t, 8)
	if err := errors.Join(os.Mkdir(source, 0o700), os.Mkdir(others, 0o700), tool(t.Context(), "mkfs.ext4", "-q", device),
		NewDevice(t.Context(), device, source, "ext4", nil)); err != nil {
		t.Fatal(err)
	}
	var table Table
	life := func() {
		_, err := MakeDir(target)
		_, _, free := table.Look(target)
		bound := Bind(source, target, ReadOnly)
		p, _, looked := table.Look(target)
		points, below := table.LookBelow(target)
		_, places := table.Places([]string{source, target})
		if err := errors.Join(err, free, bound, looked, below, places, Unmount(target), table.Remove(target)); err != nil {
			t.Fatal(err)
		}
		if mounted, err := table.Mounted(target); err != nil || mounted || p.Source != device || len(points) != 1 {
			t.Fatalf("mounted: %+v, %+v; afterwards: %t, %v", p, points, mounted, err)
		}
	}
	for n := range 500 {
		if n == 10 || n == 499 {
			before := testkit.BytesRead(t)
			life()
			if read := testkit.BytesRead(t) - before; read > 1<<10 {
				t.Errorf("beside %d others %d bytes were read", n, read)
			}
		}
		at := filepath.Join(others, fmt.Sprint(n))
		if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount(source, at, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkLife measures a bind mount and its unmount beside many other mounts.
func BenchmarkLife(b *testing.B) {
	for _, n := range []int{10, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			top := b.TempDir()
			source, target, others := filepath.Join(top, "source"), filepath.Join(top, "target"), filepath.Join(top, "others")
			defer func() { _, _ = unix.Unmount(source, unix.MNT_DETACH), unix.Unmount(others, unix.MNT_DETACH) }()
			if err := errors.Join(os.Mkdir(source, 0o700), os.Mkdir(others, 0o700), os.Mkdir(target, 0o700),
				unix.Mount("source", source, "tmpfs", 0, ""), unix.Mount("others", others, "tmpfs", 0, "")); err != nil {
				b.Fatal(err)
			}
			for i := range n {
				at := filepath.Join(others, fmt.Sprint(i))
				if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount(source, at, "", unix.MS_BIND, "")); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if err := errors.Join(Bind(source, target, 0), Unmount(target)); err != nil {
					b.Fatal(err)
				}
				if _, mounted, err := At(target); err != nil || mounted {
					b.Fatal(mounted, err)
				}
			}
		})
	}
}
