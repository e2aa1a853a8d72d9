package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// below is a directory with a volume, a tmpfs, mounted at target below it.
type below struct {
	t                *testing.T
	top, dir, target string
	table            Table
}

// newBelow mounts the volume, on a mount of its own if based is set.
func newBelow(t *testing.T, based bool) *below {
	t.Helper()
	b := &below{t: t, top: t.TempDir()}
	b.dir = filepath.Join(b.top, "dir")
	b.target = filepath.Join(b.dir, "target")
	t.Cleanup(b.clear)
	b.must(os.Mkdir(b.dir, 0o700))
	if based {
		b.must(unix.Mount("base", b.dir, "tmpfs", 0, ""))
	}
	b.must(os.Mkdir(b.target, 0o700))
	b.must(unix.Mount("volume", b.target, "tmpfs", 0, ""))
	return b
}

func (b *below) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// clear removes all mounts, the newest first.
func (b *below) clear() {
	points, err := Below(b.top)
	if err != nil {
		b.t.Error(err)
	}
	for range points {
		for _, p := range []string{b.top, b.dir, b.target} {
			_ = unix.Unmount(p, unix.MNT_DETACH)
		}
	}
	_ = b.table.Close()
}

// see checks what the table says about the volume.
func (b *below) see(hidden bool) {
	b.t.Helper()
	for _, at := range []func(string) (Point, bool, error){At, b.table.At} {
		p, mounted, err := at(b.target)
		if !mounted || p.Source != "volume" || p.Hidden != hidden || errors.Is(err, ErrHidden) != hidden {
			b.t.Errorf("%+v, %v, %v; want it hidden: %v", p, mounted, err, hidden)
		}
	}
}

// stays tries to unmount the volume, and requires that it stays.
func (b *below) stays() {
	b.t.Helper()
	for _, take := range []func(string) error{Unmount, Detach} {
		if err := take(b.target); !errors.Is(err, ErrHidden) {
			b.t.Errorf("taken away: %v", err)
		}
	}
}

func bound(dir string) error   { return unix.Mount(dir, dir, "", unix.MS_BIND, "") }
func covered(dir string) error { return unix.Mount("cover", dir, "tmpfs", 0, "") }

// TestHidden: a directory is mounted over itself, or something else over it. Mounts below are still in the table, and
// perhaps in use, but no path leads there: it is neither mistaken for the visible mount nor reported as unmounted.
func TestHidden(t *testing.T) {
	for name, c := range map[string]struct {
		based bool
		hide  func(b *below) error
		// covers are the paths at which something is mounted by that.
		covers func(b *below) []string
	}{
		"itself": {
			false, func(b *below) error { return bound(b.dir) }, func(b *below) []string { return []string{b.dir} },
		},
		"a mount itself": {
			true, func(b *below) error { return bound(b.dir) }, func(b *below) []string { return []string{b.dir} },
		},
		"something else": {
			false, func(b *below) error { return covered(b.dir) }, func(b *below) []string { return []string{b.dir} },
		},
		"twice": {
			false, func(b *below) error { return errors.Join(covered(b.dir), covered(b.dir)) },
			func(b *below) []string { return []string{b.dir, b.dir} },
		},
		"what is above it": {
			false, func(b *below) error { return bound(b.top) }, func(b *below) []string { return []string{b.top} },
		},
		"above its own one": {
			true, func(b *below) error { return bound(b.top) }, func(b *below) []string { return []string{b.top} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBelow(t, c.based)
			b.see(false)
			b.must(c.hide(b))
			b.see(true)
			b.stays()
			// The path leads to the later mount.
			b.must(os.MkdirAll(b.target, 0o700))
			b.must(unix.Mount("anew", b.target, "tmpfs", 0, ""))
			if p, mounted, err := b.table.At(b.target); err != nil || !mounted || p.Source != "anew" {
				t.Errorf("the new mount: %+v, %v, %v", p, mounted, err)
			}
			b.stays()
			for _, at := range c.covers(b) {
				b.must(unix.Unmount(at, 0))
			}
			b.see(false)
			b.must(Unmount(b.target))
			if _, mounted, err := At(b.target); err != nil || mounted {
				t.Errorf("left: %v, %v", mounted, err)
			}
		})
	}
}

// TestReadOnlyBindForbidsNoLess: restrictions of the volume's own mount apply at its second place as well.
func TestReadOnlyBindForbidsNoLess(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	t.Cleanup(func() { _, _ = unix.Unmount(target, unix.MNT_DETACH), unix.Unmount(source, unix.MNT_DETACH) })
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("volume", source, "tmpfs", flags, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Bind(source, target, ReadOnly); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil || st.Flags&flags != flags || st.Flags&unix.MS_RDONLY == 0 {
		t.Errorf("flags %#x, %v; want %#x and read-only", st.Flags, err, flags)
	}
}
