package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// MakeBelow creates a directory and its missing parents below root, which must exist, with access
// for owner and group only. It does not follow symbolic links, even if one is created while it runs. A parent
// that is removed while it runs, because it was empty for a moment, is created again. It may be repeated.
func MakeBelow(root, path string) error {
	for try := 1; ; try++ {
		if err := makeBelow(root, path); try == makeTries || !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
}

// makeTries is how often MakeBelow begins again at most.
const makeTries = 10

func makeBelow(root, path string) error {
	rel, err := filepath.Rel(root, path)
	if err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("create %s: %w: it is not below %s", path, ErrNotPlain, root)
	}
	at, err := open(root, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fail("open", root, err)
	}
	for name := range strings.SplitSeq(rel, "/") {
		next, err := openOrCreate(at, name)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(at, name, 0o750); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = openOrCreate(at, name)
			}
		}
		_ = unix.Close(at)
		if errors.Is(err, unix.ELOOP) {
			return fmt.Errorf("make %s: %w", path, ErrNotPlain)
		}
		if err != nil {
			return fail("make", path, fmt.Errorf("%s: %w", name, err))
		}
		at = next
	}
	return unix.Close(at)
}

func openOrCreate(dir int, name string) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
}

// CheckFree fails with ErrOccupied or ErrNotFree unless there is nothing at a path but an empty
// directory or, for a device, an empty file, which a driver may have left.
func (t *Table) CheckFree(path string, device bool) error {
	if err := t.unmounted(path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if device && info.Mode().IsRegular() && info.Size() == 0 {
		return nil
	}
	if device || !info.IsDir() {
		return fmt.Errorf("%s: %w: a %s", path, ErrNotFree, kind(info))
	}
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s: %w: a directory that is not empty", path, ErrNotFree)
	}
	return err
}

func (t *Table) unmounted(path string) error {
	if err := plain(path); err != nil {
		return err
	}
	at, mounted, err := t.At(path)
	if err == nil && mounted {
		err = fmt.Errorf("%s: %w: %s", path, ErrOccupied, at.Source)
	}
	return err
}

func kind(info fs.FileInfo) string {
	switch {
	case info.IsDir():
		return "directory"
	case info.Mode()&fs.ModeDevice != 0:
		return "device"
	default:
		return "file"
	}
}

// Link creates a symbolic link, unless it exists already. Anything else at the path is an error.
func Link(target, path string) error {
	dir, err := parent(path)
	if err != nil {
		return fail("link", path, err)
	}
	defer unix.Close(dir)
	err = unix.Symlinkat(target, dir, filepath.Base(path))
	if errors.Is(err, unix.EEXIST) && pointsTo(dir, filepath.Base(path), target) {
		return nil
	}
	if err != nil {
		return fail("link", path, err)
	}
	return nil
}

func pointsTo(dir int, name, target string) bool {
	b := make([]byte, len(target)+1)
	n, err := unix.Readlinkat(dir, name, b)
	return err == nil && string(b[:n]) == target
}

// Unlink deletes a symbolic link. Anything else at the path is an error. It may be repeated.
func Unlink(path string) error {
	return removeIn(path, func(dir int, name string, st unix.Stat_t) error {
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return errors.New("it is not a symbolic link")
		}
		return unix.Unlinkat(dir, name, 0)
	})
}

// Remove deletes one empty directory, empty file or device node. A mount point, or anything with
// content, is an error. It may be repeated.
func Remove(path string) error { return removeUnless(path, At) }

// Remove is the function Remove.
func (t *Table) Remove(path string) error { return removeUnless(path, t.At) }

func removeUnless(path string, at func(string) (Point, bool, error)) error {
	if err := plain(path); err != nil {
		return err
	}
	if _, mounted, err := at(path); err != nil || mounted {
		return errors.Join(err, fmt.Errorf("remove %s: it is a mount", path))
	}
	return removeIn(path, func(dir int, name string, st unix.Stat_t) error {
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			return ErrNotPlain
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		case st.Size > 0:
			return errors.New("it is not empty")
		}
		return unix.Unlinkat(dir, name, 0)
	})
}

// removeIn checks and removes the file at a path by a descriptor of its directory, so that both
// concern the same file (CVE-2017-1002102).
func removeIn(path string, remove func(dir int, name string, st unix.Stat_t) error) error {
	dir, err := parent(path)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fail("remove", path, err)
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	err = unix.Fstatat(dir, filepath.Base(path), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = remove(dir, filepath.Base(path), st)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fail("remove", path, err)
	}
	return nil
}

// CheckPath refuses a path that could lead to several places: nothing may be created or unmounted
// through a symbolic link (CVE-2021-25741). A path that does not exist passes.
func CheckPath(what, path string) error {
	switch {
	case path == "":
		return fmt.Errorf("no %s", what)
	case len(path) >= unix.PathMax:
		return fmt.Errorf("%s %.40q has %d bytes, at most %d are allowed", what, path, len(path), unix.PathMax-1)
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0):
		return fmt.Errorf("%s %.128q is not absolute and clean; use its real path", what, path)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s %.128q is a symbolic link or passes through one; use its real path", what, path)
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s %.128q: %w", what, path, err)
	}
	// Other errors appear when the path is used.
	return nil
}
