package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Point is one line of the mount table.
type Point struct {
	// Path is where it is mounted; Root is the part of the filesystem that
	// shows there ("/" is all of it).
	Path, Root string
	// Device is "major:minor" of the filesystem.
	Device string
	// Source and Type are what mount was called with.
	Source, Type string
	// ReadOnly is the mount's own flag.
	ReadOnly bool
}

// Table is the mount table, which is read anew only when the kernel says that
// it has changed. The zero Table is ready, and it is safe for concurrent use.
type Table struct {
	mu   sync.Mutex
	file *os.File
	at   map[string]Point
}

// Points returns the topmost mount of each path. The map must not be changed.
func (t *Table) Points() (map[string]Point, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, err := t.changed()
	if err == nil && changed {
		err = t.read()
	}
	if err != nil {
		t.at = nil
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	return t.at, nil
}

// At returns the topmost mount at a path. Many at once read the table once.
func (t *Table) At(path string) (Point, bool, error) {
	points, err := t.Points()
	p, mounted := points[filepath.Clean(path)]
	return p, mounted, err
}

// changed says whether there was any mount or unmount since it said so last.
func (t *Table) changed() (bool, error) {
	if t.file == nil {
		// os.Open would let Go's own poller have the kernel's word.
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
	return t.at == nil || fds[0].Revents != 0, nil
}

func (t *Table) read() error {
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	infos, err := mountinfo.GetMountsFromReader(t.file, nil)
	if err != nil {
		return err
	}
	t.at = make(map[string]Point, len(infos))
	for _, i := range infos {
		t.at[i.Mountpoint] = point(i)
	}
	return nil
}

// Close gives back what a Table holds; it is used no more.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// Below returns the mounts at dir and below it, in the order in which they
// were made.
func Below(dir string) ([]Point, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Clean(dir)))
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	out := make([]Point, 0, len(infos))
	for _, i := range infos {
		out = append(out, point(i))
	}
	return out, nil
}

// At returns the topmost mount at a path.
func At(path string) (Point, bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(filepath.Clean(path)))
	if err != nil {
		return Point{}, false, fmt.Errorf("read mount table: %w", err)
	}
	if len(infos) == 0 {
		return Point{}, false, nil
	}
	return point(infos[len(infos)-1]), true, nil
}

func point(i *mountinfo.Info) Point {
	p := Point{Path: i.Mountpoint, Root: i.Root, Device: fmt.Sprintf("%d:%d", i.Major, i.Minor), Source: i.Source, Type: i.FSType}
	for _, o := range splitOptions(i.Options) {
		p.ReadOnly = p.ReadOnly || o == "ro"
	}
	return p
}
