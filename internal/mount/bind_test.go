package mount

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// grove is a directory, shared as on most hosts, in which trees of mounts are
// bound.
type grove struct {
	*testing.T
	dir string
}

func newGrove(t *testing.T) *grove {
	t.Helper()
	g := &grove{t, t.TempDir()}
	t.Cleanup(func() {
		for range 3 {
			g.take()
		}
	})
	g.ok(unix.Mount("grove", g.dir, "tmpfs", 0, ""))
	g.ok(unix.Mount("", g.dir, "", unix.MS_SHARED, ""))
	return g
}

// take removes everything, one piece after the other.
func (g *grove) take() {
	points, err := Below(g.dir)
	if err != nil {
		g.Error(err)
	}
	for i := len(points) - 1; i >= 0; i-- {
		_ = unix.Unmount(points[i].Path, unix.MNT_DETACH)
	}
}

func (g *grove) ok(errs ...error) {
	g.Helper()
	if err := errors.Join(errs...); err != nil {
		g.Fatal(err)
	}
}

func (g *grove) at(path string) string { return filepath.Join(g.dir, path) }

// make makes a directory and mounts a tmpfs there.
func (g *grove) mount(path string) {
	g.Helper()
	g.ok(os.MkdirAll(g.at(path), 0o700), unix.Mount(path, g.at(path), "tmpfs", 0, ""))
}

// backed makes a back end and a tree as drivers of sshfs and gocryptfs do: a tmpfs with the back end below it, and a
// view of the back end.
func (g *grove) backed() {
	g.Helper()
	g.ok(os.MkdirAll(g.at("backend/view"), 0o700), os.Mkdir(g.at("bound"), 0o700))
	g.mount("source")
	g.ok(os.Mkdir(g.at("source/cipher"), 0o700), os.Mkdir(g.at("source/data"), 0o700))
	g.ok(unix.Mount(g.at("backend"), g.at("source/cipher"), "", unix.MS_BIND, ""))
	g.ok(unix.Mount(g.at("backend/view"), g.at("source/data"), "", unix.MS_BIND, ""))
}

// below requires this many mounts at and below a path.
func (g *grove) below(path string, want int) []Point {
	g.Helper()
	points, err := Below(g.at(path))
	if err != nil || len(points) != want {
		g.Errorf("below %s: %v, %v; want %d", path, points, err, want)
	}
	return points
}

// TestBindTakesWhatIsBelow: writes through a bind go where the driver's mounts are, not underneath them.
func TestBindTakesWhatIsBelow(t *testing.T) {
	g := newGrove(t)
	g.backed()
	for range 2 {
		g.ok(Bind(g.at("source"), g.at("bound"), 0))
	}
	g.below("bound", 3)
	g.ok(os.WriteFile(g.at("bound/data/file"), []byte("data"), 0o600))
	if got, err := os.ReadFile(g.at("backend/view/file")); err != nil || string(got) != "data" {
		t.Errorf("the back end has %q, %v", got, err)
	}
	// Later mounts below are visible; unmounts concern only the source.
	g.ok(os.Mkdir(g.at("source/late"), 0o700))
	g.mount("source/late")
	g.below("bound", 4)
	for range 2 {
		g.ok(Unmount(g.at("bound")))
	}
	g.below("bound", 0)
	g.below("source", 4)
	g.ok(Unmount(g.at("source")))
	g.below("source", 0)
}

// TestBindForbidsBelow: the restrictions of a bind apply everywhere below it, including later mounts.
func TestBindForbidsBelow(t *testing.T) {
	g := newGrove(t)
	g.backed()
	g.ok(os.Mkdir(g.at("source/late"), 0o700))
	g.ok(Bind(g.at("source"), g.at("bound"), ReadOnly|NoSUID|NoDev))
	g.mount("source/late")
	for _, dir := range []string{"bound", "bound/data", "bound/cipher", "bound/late"} {
		if err := os.WriteFile(g.at(dir+"/x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s was written to: %v", dir, err)
		}
		var st unix.Statfs_t
		const want = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
		if err := unix.Statfs(g.at(dir), &st); err != nil || st.Flags&want != want {
			t.Errorf("%s: flags %#x, %v", dir, st.Flags, err)
		}
	}
	g.ok(os.WriteFile(g.at("source/data/x"), nil, 0o600))
	// If the bind is requested again with more restrictions, they apply as well.
	g.ok(Unmount(g.at("bound")), Bind(g.at("source"), g.at("bound"), 0), Bind(g.at("source"), g.at("bound"), ReadOnly))
	if err := os.WriteFile(g.at("bound/data/y"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to: %v", err)
	}
}

// TestBindIsWhole: mounts that the kernel would omit from a bind are an error, not a directory in which data is lost.
func TestBindIsWhole(t *testing.T) {
	g := newGrove(t)
	g.backed()
	g.ok(unix.Mount("", g.at("source/data"), "", unix.MS_UNBINDABLE, ""))
	if err := Bind(g.at("source"), g.at("bound"), 0); !errors.Is(err, ErrUnbindable) {
		t.Errorf("bound: %v", err)
	}
	g.below("bound", 0)
}

// TestUnmountInnermostFirst: the order does not depend on the order of mounting, and other paths with the same prefix
// are not affected.
func TestUnmountInnermostFirst(t *testing.T) {
	for name, unmount := range map[string]func(string) error{"unmount": Unmount, "detach": Detach} {
		t.Run(name, func(t *testing.T) {
			g := newGrove(t)
			g.mount("other")
			g.mount("at-other")
			g.ok(os.Mkdir(g.at("other/sub"), 0o700))
			g.mount("other/sub")
			g.mount("at")
			g.ok(os.MkdirAll(g.at("at/moved"), 0o700), os.MkdirAll(g.at("at/deep/er"), 0o700))
			g.mount("at/deep/er")
			// An older tree on top of a newer mount.
			g.ok(unix.Mount("", g.dir, "", unix.MS_PRIVATE, ""))
			g.ok(unix.Mount(g.at("other"), g.at("at/moved"), "", unix.MS_MOVE, ""))
			// And one that hides all of it.
			g.mount("at")
			g.ok(unmount(g.at("at")))
			g.below("at", 0)
			g.below("at-other", 1)
		})
	}
}

// TestUnmountOfAPlainDirectory: mounts that others have made below it are not unmounted.
func TestUnmountOfAPlainDirectory(t *testing.T) {
	g := newGrove(t)
	g.mount("plain/theirs")
	g.ok(Unmount(g.at("plain")), Detach(g.at("plain")))
	g.below("plain", 1)
}

// TestUnmountOfWhatIsUsedBelow: a mount in use is not taken away from its users.
func TestUnmountOfWhatIsUsedBelow(t *testing.T) {
	g := newGrove(t)
	g.backed()
	g.ok(Bind(g.at("source"), g.at("bound"), 0))
	used, err := os.Open(g.at("bound/data"))
	g.ok(err)
	if err := Unmount(g.at("bound")); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "bound/data") {
		t.Errorf("unmounted: %v", err)
	}
	g.ok(used.Close())
	g.ok(Unmount(g.at("bound")))
	g.below("bound", 0)
	g.below("source", 3)
}

// TestBindsInContainers: a bridge's mount in a container appears on its host, with everything below it, and disappears
// there when it is unmounted. The driver's own mounts stay.
func TestBindsInContainers(t *testing.T) {
	g := newGrove(t)
	g.backed()
	// As sees what the mounts of another namespace are.
	other := exec.Command("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", "echo; read x")
	in, err := other.StdinPipe()
	g.ok(err)
	out, err := other.StdoutPipe()
	g.ok(err)
	g.ok(other.Start())
	defer func() {
		_ = in.Close()
		_ = other.Wait()
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	see := func(path string, want int) {
		t.Helper()
		table, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid))
		g.ok(err)
		defer table.Close()
		infos, err := mountinfo.GetMountsFromReader(table, nil)
		n := 0
		for _, i := range infos {
			if isBelow(i.Mountpoint, g.at(path)) {
				n++
			}
		}
		if err != nil || n != want {
			t.Errorf("on the host there are %d mounts below %s, %v; want %d", n, path, err, want)
		}
	}
	for name, unmount := range map[string]func(string) error{"unmount": Unmount, "detach": Detach} {
		g.ok(Bind(g.at("source"), g.at("bound"), 0))
		see("bound", 3)
		g.ok(unmount(g.at("bound")))
		g.below("bound", 0)
		see("bound", 0)
		see("source", 3)
		if g.below("source", 3); t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestPeersStayApart: a driver's rbind of a shared tree shares what is mounted in
// it with the tree; what is unmounted in one stays in the other.
func TestPeersStayApart(t *testing.T) {
	for name, unmount := range map[string]func(string) error{"unmount": Unmount, "detach": Detach} {
		t.Run(name, func(t *testing.T) {
			g := newGrove(t)
			g.backed()
			g.ok(unix.Mount(g.at("source"), g.at("bound"), "", unix.MS_BIND|unix.MS_REC, ""))
			g.below("bound", 3)
			g.ok(unmount(g.at("bound")))
			g.below("bound", 0)
			g.below("source", 3)
		})
	}
}

// TestCopiesGoToo: a bound tree is visible a second time, because its whole directory is bound; it is unmounted there
// as well, and the driver's own mounts stay in both places.
func TestCopiesGoToo(t *testing.T) {
	for name, unmount := range map[string]func(string) error{"unmount": Unmount, "detach": Detach} {
		t.Run(name, func(t *testing.T) {
			g := newGrove(t)
			g.mount("within")
			g.ok(os.Mkdir(g.at("copy"), 0o700), unix.Mount(g.at("within"), g.at("copy"), "", unix.MS_BIND, ""))
			in := &grove{t, g.at("within")}
			in.backed()
			g.below("copy", 4)
			g.ok(Bind(in.at("source"), in.at("bound"), 0))
			g.below("copy/bound", 3)
			g.ok(unmount(in.at("bound")))
			g.below("copy/bound", 0)
			g.below("within/bound", 0)
			g.below("within", 4)
			g.below("copy", 4)
		})
	}
}

// TestDeadAreDetached: dead mounts are detached with everything mounted below them.
func TestDeadAreDetached(t *testing.T) {
	g := newGrove(t)
	g.mount("source")
	die := fuse(t, g.at("source"))
	g.ok(os.Mkdir(g.at("bound"), 0o700))
	g.ok(Bind(g.at("source"), g.at("bound"), 0))
	die()
	g.ok(Unmount(g.at("bound")))
	g.ok(Bind(g.at("source"), g.at("bound"), NoSUID))
	g.ok(Detach(g.at("bound")), Detach(g.at("source")))
	g.below("bound", 0)
	g.below("source", 0)
}

// TestWithin: a path that leads into a directory through a bind counts as inside it.
func TestWithin(t *testing.T) {
	g := newGrove(t)
	g.ok(os.MkdirAll(g.at("data/pool/volumes"), 0o700), os.Mkdir(g.at("data-too"), 0o700),
		os.MkdirAll(g.at("bound/x"), 0o700), os.MkdirAll(g.at("all"), 0o700))
	g.ok(unix.Mount(g.at("data/pool"), g.at("bound/x"), "", unix.MS_BIND, ""),
		unix.Mount(g.dir, g.at("all"), "", unix.MS_BIND, ""))
	g.ok(os.Mkdir(g.at("data/own"), 0o700))
	g.mount("data/own")
	for path, want := range map[string]bool{
		"data": true, "data/pool": true, "data/own": true, "data/own/x": true, "data-too": false, "": true, "bound": false,
		"bound/x":         true,
		"bound/x/volumes": true, "all": true, "all/data": true, "all/data/pool/volumes": true, "all/data-too": false,
		"all/bound": false,
	} {
		if got, err := Within(g.at(path), g.at("data")); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", path, got, err, want)
		}
	}
}
