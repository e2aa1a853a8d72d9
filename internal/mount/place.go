package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The owner of a directory in a path can replace it by a symbolic link at any moment. So checks and
// changes use the same descriptor: of the place itself or, for a mount point, of its parent
// directory.

// clean refuses paths in another form than that of the mount table.
func clean(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%s: %w: it is not absolute and clean", path, ErrNotPlain)
	}
	return nil
}

// open opens a path without following symbolic links.
func open(path string, flags uint64) (int, error) {
	if err := clean(path); err != nil {
		return -1, err
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path,
		&unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ELOOP) {
		return -1, fmt.Errorf("%s: %w", path, ErrNotPlain)
	}
	return fd, err
}

// parent opens the directory of a path without following symbolic links.
func parent(path string) (int, error) {
	if err := clean(path); err != nil {
		return -1, err
	}
	return open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
}

// plain refuses relative paths and paths through symbolic links, which could lead elsewhere
// (CVE-2021-25741). A path that does not exist passes; other errors appear when the path is used.
// It does not access what is mounted at the path.
func plain(path string) error {
	dir, err := parent(path)
	if errors.Is(err, ErrNotPlain) {
		return err
	}
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	var b [1]byte
	if _, err := unix.Readlinkat(dir, filepath.Base(path), b[:]); err == nil {
		return fmt.Errorf("%s: %w", path, ErrNotPlain)
	}
	return nil
}

// fdPath returns a path that leads to the file of a descriptor.
func fdPath(fd int) string { return fmt.Sprint("/proc/self/fd/", fd) }

// mountAt returns the mount id of a name in a directory, or of the directory itself if the name is
// empty, and whether it is the root of the mount.
func mountAt(dir int, name string) (id int, top bool, err error) {
	st, err := statxAt(dir, name, unix.STATX_MNT_ID)
	return int(st.Mnt_id), st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// mountOfFile returns the mount id of an open file from its fdinfo.
func mountOfFile(info string) (uint64, error) {
	text, err := os.ReadFile(info)
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), "mnt_id:")
	if !ok {
		return 0, errors.New("no mount id in " + info)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseUint(strings.TrimSpace(line), 10, 64)
}

// mountID is mountAt without a call to the filesystem: one that the kernel has shut down after an error, as with xfs,
// answers none.
func mountID(dir int, name string) (int, error) {
	id, _, err := mountAt(dir, name)
	if !errors.Is(err, unix.EIO) {
		return id, err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	of, err := mountOfFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	return int(of), err
}

func statxAt(dir int, name string, mask int) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err = unix.Statx(dir, name, flags, mask, &st)
	return st, err
}

// MakeDir creates a directory, but not its parents, with access for owner and group only, and says
// whether it did not exist. It may be repeated.
func MakeDir(path string) (made bool, err error) {
	return makeIn(path, func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o750) })
}

// MakeFile creates an empty file, at which a device can be bind-mounted, and says whether it did
// not exist. It may be repeated.
func MakeFile(path string) (made bool, err error) {
	return makeIn(path, func(dir int, name string) error {
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func makeIn(path string, in func(dir int, name string) error) (made bool, err error) {
	dir, err := parent(path)
	if err != nil {
		return false, fail("make", path, err)
	}
	defer unix.Close(dir)
	err = in(dir, filepath.Base(path))
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fail("make", path, err)
	}
	return true, nil
}

// Within says whether a path leads to one of the directories, or to a place in or above one, also
// through bind mounts: a mount there would cover the directory or a part of it.
func Within(path string, dirs ...string) (bool, error) {
	infos, err := readTable()
	if err != nil {
		return false, err
	}
	at := siteOf(infos, path)
	for _, dir := range dirs {
		kept := siteOf(infos, dir)
		if at.device == kept.device && (isBelow(at.path, kept.path) || isBelow(kept.path, at.path)) ||
			isBelow(path, dir) || isBelow(dir, path) {
			return true, nil
		}
	}
	return false, nil
}

// isBelow says whether a path is dir or below it.
func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
