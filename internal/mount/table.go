package mount

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Point is one line of the mount table.
type Point struct {
	// ID is the mount id of the kernel, which may reuse it after an unmount.
	ID int
	// Path is the mount point. Root is the directory of the filesystem that is visible there ("/" is the whole
	// filesystem).
	Path, Root string
	// Device is "major:minor" of the filesystem.
	Device string
	// Source and Type are those that mount was called with.
	Source, Type string
	// ReadOnly is the flag of the mount, NoWrites that of its filesystem: the kernel sets it after
	// an error in the filesystem, and then no mount of it is writable.
	ReadOnly, NoWrites bool
	// Hidden says that the path does not lead to the mount, because something was mounted above it
	// later. The mount still exists and may be in use.
	Hidden bool
}

// Filesystem names a mounted filesystem by its type and source, without a password that the source may contain.
func (p Point) Filesystem() string {
	source := p.Source
	if scheme, rest, isURL := strings.Cut(source, "://"); isURL {
		host, path, _ := strings.Cut(rest, "/")
		source = scheme + "://" + host[strings.LastIndex(host, "@")+1:] + "/" + path
	}
	return p.Type + " " + source
}

// MayShow says whether a mount may be of a filesystem that was recorded; an empty record says nothing.
func (p Point) MayShow(filesystem string) bool {
	return filesystem == "" || p.Filesystem() == filesystem
}

// reached returns the mount if its path leads to it, and ErrHidden otherwise.
func (p Point) reached() (Point, bool, error) {
	if p.Hidden {
		return p, true, fmt.Errorf("%s: %w", p.Path, ErrHidden)
	}
	return p, true, nil
}

// Table is the mount table, which is read only after the kernel has reported a change. It reports none when a directory
// above a mount point is renamed, and when a filesystem becomes read-only because of an error: NoWrites may be
// outdated, and callers that are about to unmount use At. The zero value is ready for use. It is safe for concurrent
// use.
type Table struct {
	mu   sync.Mutex
	file *os.File
	all  []Point
	now  Snapshot
}

// Snapshot is the mount table at one moment. It must not be changed.
type Snapshot struct {
	// At has the topmost mount at each path; a hidden one only if there is no other.
	At    map[string]Point
	paths []string
}

// All returns all mounts, including hidden ones, in the order in which they were made. The result must not be changed,
// and does not say which are hidden.
func (t *Table) All() ([]Point, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.refresh()
	return t.all, err
}

// Snapshot returns the current mounts, for comparing several paths.
func (t *Table) Snapshot() (Snapshot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.refresh()
	return t.now, err
}

// Points returns the topmost mount at each path; a hidden one only if there is no other. The map
// must not be changed.
func (t *Table) Points() (map[string]Point, error) {
	s, err := t.Snapshot()
	return s.At, err
}

// Below is Snapshot.Below of what is mounted now.
func (t *Table) Below(dir string) ([]Point, error) {
	s, err := t.Snapshot()
	return s.Below(dir), err
}

// Below returns the topmost mount at each path at and below dir, without hidden ones, ordered by
// path.
func (s Snapshot) Below(dir string) []Point {
	dir = filepath.Clean(dir)
	var out []Point
	add := func(path string) {
		if p, mounted := s.At[path]; mounted && !p.Hidden {
			out = append(out, p)
		}
	}
	add(dir)
	// In the order of paths, others can be between dir and those below it: "/a", "/a-b", "/a/b".
	first, _ := slices.BinarySearch(s.paths, dir+"/")
	for _, path := range s.paths[first:] {
		if !strings.HasPrefix(path, dir+"/") {
			break
		}
		add(path)
	}
	return out
}

// Mounted says whether anything is mounted at a path or below it. The error is ErrHidden if the
// path does not lead to the mount.
func (t *Table) Mounted(path string) (bool, error) {
	if bare(path) {
		return false, nil
	}
	if _, mounted, err := t.At(path); err != nil || mounted {
		return mounted, err
	}
	points, err := t.Below(path)
	return len(points) > 0, err
}

// Look is At for a path at which only responsive filesystems can be mounted: the filesystem is accessed.
func (t *Table) Look(path string) (Point, bool, error) { return lookOr(path, t.At) }

// LookBelow is Below for a path at which only responsive filesystems can be mounted: the filesystem is accessed.
func (t *Table) LookBelow(path string) ([]Point, error) {
	if p, alone, sure := lookAt(path); sure && alone {
		return []Point{p}, nil
	}
	return t.Below(path)
}

// Places returns the mounts at some paths and below them, for paths at which only responsive filesystems can be
// mounted, because these are accessed. Other mounts may be left out.
func (t *Table) Places(paths []string) (Snapshot, error) {
	s := Snapshot{At: map[string]Point{}}
	for _, path := range paths {
		p, alone, sure := lookAt(path)
		switch {
		case sure && p.Path == "":
		case sure && alone:
			s.At[path], s.paths = p, append(s.paths, path)
		default:
			return t.Snapshot()
		}
	}
	slices.Sort(s.paths)
	return s, nil
}

// refresh reads the table if it has changed.
func (t *Table) refresh() error {
	changed, err := t.changed()
	if err == nil && changed {
		err = t.read()
	}
	if err != nil {
		t.all, t.now = nil, Snapshot{}
		return fmt.Errorf("read mount table: %w", err)
	}
	return nil
}

// At returns the topmost mount at a path. The error is ErrHidden if the path does not lead to it. The mounted
// filesystem is not accessed.
func (t *Table) At(path string) (Point, bool, error) {
	if free(path) {
		return Point{}, false, nil
	}
	points, err := t.Points()
	p, mounted := points[filepath.Clean(path)]
	if err != nil || !mounted {
		return p, false, err
	}
	return p.reached()
}

// changed says whether there was a mount or unmount since its last call.
func (t *Table) changed() (bool, error) {
	if t.file == nil {
		// With os.Open, Go's own poller would receive the kernel's notification.
		fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return false, err
		}
		t.file = os.NewFile(uintptr(fd), "mountinfo")
	}
	fds := []unix.PollFd{{Fd: int32(t.file.Fd()), Events: unix.POLLPRI}}
	if _, err := unix.Poll(fds, 0); err != nil && !errors.Is(err, unix.EINTR) {
		return false, err
	}
	return t.now.At == nil || fds[0].Revents != 0, nil
}

func (t *Table) read() error {
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	infos, err := mountinfo.GetMountsFromReader(t.file, nil)
	if err != nil {
		return err
	}
	infos = withoutTraps(infos)
	t.all = points(infos)
	at := topmost(infos, infos)
	t.now = Snapshot{At: at, paths: slices.Sorted(maps.Keys(at))}
	return nil
}

// CoveredBy names the filesystem that a path shows although another one is mounted there: something was mounted later
// at a directory above it, or own does not accept the mount at the path itself. It is empty otherwise.
func CoveredBy(points map[string]Point, path string, own func(Point) bool) string {
	p, mounted := points[path]
	switch {
	case mounted && p.Hidden:
		for path != "/" {
			path = filepath.Dir(path)
			if above, ok := points[path]; ok && !above.Hidden {
				return above.Filesystem()
			}
		}
	case mounted && !own(p):
		return p.Filesystem()
	}
	return ""
}

// topmost returns which of some mounts is the topmost at each path; all is the whole table.
func topmost(all, some []*mountinfo.Info) map[string]Point {
	if len(some) == 0 {
		return nil
	}
	c := newCovers(all)
	at := make(map[string]Point, len(some))
	for _, i := range some {
		p := point(i)
		p.Hidden = c.hidden(i)
		if was, ok := at[p.Path]; !ok || was.Hidden || !p.Hidden {
			at[p.Path] = p
		}
	}
	return at
}

// covers finds the mounts that hide others. Of two mounts on one parent, the one nearer to its root
// hides the other.
type covers struct {
	byID map[int]*mountinfo.Info
	on   map[spot]bool
}

type spot struct {
	parent int
	path   string
}

func newCovers(infos []*mountinfo.Info) covers {
	c := covers{byID: make(map[int]*mountinfo.Info, len(infos)), on: make(map[spot]bool, len(infos))}
	for _, i := range infos {
		c.byID[i.ID] = i
		if i.Parent != i.ID {
			c.on[spot{i.Parent, i.Mountpoint}] = true
		}
	}
	return c
}

// hidden says whether a mount is hidden, by checking every directory between it and the root.
func (c covers) hidden(i *mountinfo.Info) bool {
	// The depth is at most the number of mounts.
	for range c.byID {
		parent := c.byID[i.Parent]
		if parent == nil || parent == i {
			return false
		}
		for dir := i.Mountpoint; dir != parent.Mountpoint && dir != "/"; {
			if dir = filepath.Dir(dir); c.on[spot{i.Parent, dir}] {
				return true
			}
		}
		i = parent
	}
	return false
}

// Close releases the resources of a Table, which must not be used any more.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// Below returns the mounts at and below dir, in the order in which they were made.
func Below(dir string) ([]Point, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Clean(dir)))
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return points(withoutTraps(infos)), nil
}

func points(infos []*mountinfo.Info) []Point {
	out := make([]Point, 0, len(infos))
	for _, i := range infos {
		out = append(out, point(i))
	}
	return out
}

// At returns the topmost mount at a path. The error is ErrHidden if the path does not lead to it. The filesystem there
// is not accessed, so At reads the whole mount table, except for a path at which nothing is mounted.
func At(path string) (Point, bool, error) {
	if free(path) {
		return Point{}, false, nil
	}
	infos, err := readTable()
	if err != nil {
		return Point{}, false, err
	}
	return reachedIn(infos, path)
}

// Look is At for a path at which only responsive filesystems can be mounted: the filesystem is accessed.
func Look(path string) (Point, bool, error) { return lookOr(path, At) }

// lookOr queries the kernel for the mount at a path, and uses another source if the kernel's answer is not certain.
func lookOr(path string, at func(string) (Point, bool, error)) (Point, bool, error) {
	if p, _, sure := lookAt(path); sure {
		return p, p.Path != "", nil
	}
	return at(path)
}

func readTable() ([]*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return withoutTraps(infos), nil
}

// Trapped says whether an autofs mount waits at a path, or has another filesystem mounted over it.
func Trapped(path string) (bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("autofs"))
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return slices.ContainsFunc(infos, func(i *mountinfo.Info) bool { return i.Mountpoint == path }), nil
}

// withoutTraps leaves out the mounts of autofs. An autofs mount has no files: it waits for the first access to its
// path, and then mounts another filesystem over itself. So a path with nothing else is free, and an autofs mount hides
// nothing.
func withoutTraps(infos []*mountinfo.Info) []*mountinfo.Info {
	below := map[int]int{}
	for _, i := range infos {
		if i.FSType == "autofs" {
			below[i.ID] = i.Parent
		}
	}
	return slices.DeleteFunc(infos, func(i *mountinfo.Info) bool {
		for range below {
			if parent, trap := below[i.Parent]; trap {
				i.Parent = parent
			}
		}
		return i.FSType == "autofs"
	})
}

// reachedIn is At for a table that was read.
func reachedIn(infos []*mountinfo.Info, path string) (Point, bool, error) {
	path = filepath.Clean(path)
	here := slices.DeleteFunc(slices.Clone(infos), func(i *mountinfo.Info) bool { return i.Mountpoint != path })
	p, mounted := topmost(infos, here)[path]
	if !mounted {
		return p, false, nil
	}
	return p.reached()
}

// site is a place in a filesystem, independent of the path under which it is reached.
type site struct{ device, path string }

// siteOf returns the place that a path without symbolic links leads to.
func siteOf(infos []*mountinfo.Info, path string) site {
	above := slices.DeleteFunc(slices.Clone(infos), func(i *mountinfo.Info) bool { return !isBelow(path, i.Mountpoint) })
	var on Point
	for _, p := range topmost(infos, above) {
		if !p.Hidden && len(p.Path) >= len(on.Path) {
			on = p
		}
	}
	return site{on.Device, filepath.Join(on.Root, strings.TrimPrefix(path, strings.TrimSuffix(on.Path, "/")))}
}

func point(i *mountinfo.Info) Point {
	p := Point{
		ID: i.ID, Path: i.Mountpoint, Root: i.Root, Device: fmt.Sprintf("%d:%d", i.Major, i.Minor), Source: i.Source,
		Type: i.FSType,
	}
	for _, o := range splitOptions(i.Options) {
		p.ReadOnly = p.ReadOnly || o == "ro"
	}
	for _, o := range splitOptions(i.VFSOptions) {
		p.NoWrites = p.NoWrites || forbidsWrites(o)
	}
	return p
}

// forbidsWrites says whether a filesystem with an option cannot be written to.
func forbidsWrites(option string) bool {
	return option == "ro" || option == "emergency_ro" || option == "shutdown"
}
