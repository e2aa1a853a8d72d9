package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExchangedDirectories: a directory above the path is replaced by a symbolic link to another directory, repeatedly.
// Whatever the result of the operation, nothing is mounted, unmounted, created or removed in the other directory.
func TestExchangedDirectories(t *testing.T) {
	g := newGrove(t)
	g.backed()
	for _, dir := range []string{"home/dir/target", "elsewhere/target", "elsewhere/removed"} {
		g.ok(os.MkdirAll(g.at(dir), 0o700))
	}
	g.ok(os.WriteFile(g.at("elsewhere/file"), nil, 0o600), os.Symlink("/", g.at("elsewhere/link")))
	g.mount("elsewhere/target")
	g.ok(os.Symlink(g.at("elsewhere"), g.at("home/link")))
	untouched := g.inventory("elsewhere")
	target := g.at("home/dir/target")
	deeds := map[string]func() error{
		"unmount":    func() error { return errors.Join(Bind(g.at("source"), target, NoSUID), Unmount(target)) },
		"detach":     func() error { return errors.Join(Bind(g.at("source"), target, 0), Detach(target)) },
		"top":        func() error { return errors.Join(Bind(g.at("source"), target, 0), UnmountTop(target, false)) },
		"make":       func() error { _, err := MakeDir(g.at("home/dir/made")); return err },
		"make file":  func() error { _, err := MakeFile(g.at("home/dir/made-file")); return err },
		"make below": func() error { return MakeBelow(g.dir, g.at("home/dir/made-too/sub")) },
		"make link":  func() error { return Link("/", g.at("home/dir/made-link")) },
		"remove":     func() error { return errors.Join(Remove(g.at("home/dir/removed")), Remove(g.at("home/dir/made"))) },
		"remove file": func() error {
			return errors.Join(Remove(g.at("home/dir/file")), Remove(g.at("home/dir/made-file")))
		},
		"remove link": func() error { return errors.Join(Unlink(g.at("home/dir/link")), Unlink(g.at("home/dir/made-link"))) },
	}
	stop := g.exchange("home/dir", "home/link")
	defer stop()
	defer g.watch("elsewhere", untouched)()
	for name, deed := range deeds {
		done, refused := 0, 0
		// Both results occur, however the two take turns.
		const rounds, most = 1500, 20_000
		for n := 0; n < rounds || (done == 0 || refused == 0) && n < most; n++ {
			if err := deed(); err == nil {
				done++
			} else {
				refused++
			}
			if got := g.inventory("elsewhere"); got != untouched {
				t.Fatalf("%s: elsewhere there is\n%swanted\n%s", name, got, untouched)
			}
		}
		if done == 0 || refused == 0 {
			t.Errorf("%s: done %d times, refused %d times: nothing was tried", name, done, refused)
		}
	}
}

// watch looks for short-lived mounts in a directory.
func (g *grove) watch(dir, untouched string) (stop func()) {
	var ended sync.WaitGroup
	end := make(chan struct{})
	ended.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if points, err := Below(g.at(dir)); err != nil || len(points) != strings.Count(untouched, " at ") {
				g.Errorf("for a moment there is in %s: %v, %v", dir, points, err)
				return
			}
		}
	})
	return func() {
		close(end)
		ended.Wait()
	}
}

// exchange swaps two paths repeatedly until it is stopped, which restores them.
func (g *grove) exchange(a, b string) (stop func()) {
	var ended sync.WaitGroup
	end := make(chan struct{})
	ended.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-end:
				if n%2 == 0 {
					return
				}
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, g.at(a), unix.AT_FDCWD, g.at(b), unix.RENAME_EXCHANGE); err != nil {
				g.Error(err)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(end)
		ended.Wait()
	})
}

// inventory lists what is in a directory, and mounted there.
func (g *grove) inventory(dir string) (out string) {
	g.Helper()
	entries, err := os.ReadDir(g.at(dir))
	g.ok(err)
	for _, e := range entries {
		out += e.Name() + "\n"
	}
	points, err := Below(g.at(dir))
	g.ok(err)
	for _, p := range points {
		out += p.Source + " at " + filepath.Base(p.Path) + "\n"
	}
	return out
}

// TestDeviceAtAnExchangedDirectory: mount(8) mounts at the directory that was checked, or
// not at all.
func TestDeviceAtAnExchangedDirectory(t *testing.T) {
	_, device := disk(t, 4)
	g := newGrove(t)
	g.ok(tool(t.Context(), "mkfs.ext2", "-q", device))
	g.ok(os.MkdirAll(g.at("home/dir/target"), 0o700), os.MkdirAll(g.at("elsewhere/target"), 0o700),
		os.Symlink(g.at("elsewhere"), g.at("home/link")))
	untouched := g.inventory("elsewhere")
	stop := g.exchange("home/dir", "home/link")
	for begun, n := 0, 0; begun < 40 && n < 20_000; n++ {
		if err := Device(t.Context(), device, g.at("home/dir/target"), "ext2", []string{"ro"}); !errors.Is(err, ErrNotPlain) {
			begun++
		}
		if got := g.inventory("elsewhere"); got != untouched {
			t.Fatalf("elsewhere there is\n%s", got)
		}
		_ = Unmount(g.at("home/dir/target"))
	}
	stop()
	g.ok(Unmount(g.at("home/dir/target")))
	g.below("", 1)
}

// TestMovedTarget: nothing stays of a bind whose directory is moved during the bind, and an unmount affects what is at
// the path.
func TestMovedTarget(t *testing.T) {
	g := newGrove(t)
	g.backed()
	g.ok(os.MkdirAll(g.at("home/dir/target"), 0o700), os.MkdirAll(g.at("home/other/target"), 0o700))
	moved := 0
	for n := 0; n < 500 || moved == 0 && n < 3000; n++ {
		stop := g.exchange("home/dir", "home/other")
		err := Bind(g.at("source"), g.at("home/dir/target"), 0)
		stop()
		want := 3
		if err != nil {
			moved++
			want = 0
		}
		points := g.below("home", want)
		if t.Failed() {
			t.Fatal(err)
		}
		if len(points) > 0 {
			g.ok(Unmount(points[0].Path))
		}
	}
	if moved == 0 {
		t.Error("it was never moved: nothing was tried")
	}
}
