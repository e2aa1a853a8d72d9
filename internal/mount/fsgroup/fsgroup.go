package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories are open at the same time at most.
const maxDepth = 200

var errDepth = errors.New("directories are nested too deeply")

// Incomplete is the error of a walk that reached its end but could not change everything.
type Incomplete struct {
	// Count is the number of files and directories that are not changed; the content of such a directory is not counted.
	Count int
	// First is the first cause. It names the file within the volume.
	First error
}

// Error says how many files are not changed.
func (i *Incomplete) Error() string {
	return fmt.Sprintf("%d not changed, the first: %v", i.Count, i.First)
}

// Unwrap returns the first cause.
func (i *Incomplete) Unwrap() error { return i.First }

// Apply sets the group of dir and of everything below it on the same mount, with read and write
// permission for the group; new files in the directories inherit the group. Unless always is
// true, it does nothing if dir has the group and the permissions already. It may be repeated. Files that
// cannot be changed are skipped, and the error is *Incomplete.
func Apply(ctx context.Context, dir string, group int, always bool) error {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("give %s to group %d: %w", dir, group, err)
	}
	w := &walk{group: group}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("give %s to group %d: %w", dir, group, err)
	}
	w.device = st.Dev
	if !always && int(st.Gid) == group && st.Mode&dirBits == dirBits {
		return unix.Close(fd)
	}
	if err := w.skip(ctx, ".", w.dir(ctx, fd, dir, st, 0)); err != nil {
		return fmt.Errorf("give %s to group %d: %w", dir, group, err)
	}
	if w.left.Count > 0 {
		return fmt.Errorf("give %s to group %d: %w", dir, group, &w.left)
	}
	return nil
}

// skip counts a file that cannot be changed. It returns an error only if the walk has to end. A file that is gone is
// not counted.
func (w *walk) skip(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if w.left.Count++; w.left.First == nil {
		w.left.First = fmt.Errorf("%.200q: %w", name, err)
	}
	return nil
}

const (
	dirBits  = unix.S_ISGID | 0o070
	fileBits = 0o060
)

type walk struct {
	group  int
	device uint64
	left   Incomplete
}

// dir changes a directory and its content, and closes fd. The directory itself is changed last: its
// group says that everything below is done.
func (w *walk) dir(ctx context.Context, fd int, name string, st unix.Stat_t, depth int) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if depth > maxDepth {
		return errDepth
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := f.ReadDir(512)
		for _, e := range entries {
			if err := w.skip(ctx, e.Name(), w.entry(ctx, fd, e.Name(), depth)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Fchown(fd, -1, w.group); err != nil {
		return err
	}
	return unix.Fchmod(fd, st.Mode&0o7777|dirBits)
}

func (w *walk) entry(ctx context.Context, parent int, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Dev != w.device {
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := open(parent, name, unix.O_DIRECTORY)
		if fd < 0 {
			return err
		}
		return w.dir(ctx, fd, name, st, depth+1)
	case unix.S_IFREG:
		return w.file(parent, name)
	default:
		return unix.Fchownat(parent, name, -1, w.group, unix.AT_SYMLINK_NOFOLLOW)
	}
}

// open opens a file of the walk to be read. It returns -1 without an error for what is mounted there: a bind mount may
// be of the same filesystem, and belongs to others.
func open(parent int, name string, flags uint64) (fd int, err error) {
	fd, err = unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   flags | unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if errors.Is(err, unix.EXDEV) {
		return -1, nil
	}
	return fd, err
}

// file changes a file by its descriptor, wherever its name leads by then.
func (w *walk) file(parent int, name string) error {
	fd, err := open(parent, name, unix.O_NONBLOCK)
	if fd < 0 {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != w.device || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if err := unix.Fchown(fd, -1, w.group); err != nil {
		return err
	}
	return unix.Fchmod(fd, st.Mode&0o7777|fileBits)
}
