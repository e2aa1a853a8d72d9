package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Whoever owns a directory of a path can put a symbolic link in its place at any
// moment. So what is looked at and what is done meet in a descriptor: of the
// place itself, or, where something is mounted there, of the directory that it
// is in.

// clean refuses paths that are not written as the mount table writes them.
func clean(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%s: %w: it is not absolute and clean", path, ErrNotPlain)
	}
	return nil
}

// open opens what is at a path, by way of no symbolic link.
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

// parent opens the directory that a path is in, by way of no symbolic link.
func parent(path string) (int, error) {
	if err := clean(path); err != nil {
		return -1, err
	}
	return open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
}

// plain refuses relative paths and paths through symbolic links, which could
// lead elsewhere (CVE-2021-25741). What does not exist passes: what is wrong
// otherwise shows when the path is used. It asks nothing of what is mounted at
// the path.
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

// self is a path that leads to what a descriptor is of, and to nothing else.
func self(fd int) string { return fmt.Sprint("/proc/self/fd/", fd) }

// mountAt returns the kernel's number of the mount that a name in a directory
// leads to, or the directory itself when there is no name, and whether that is
// the top of the mount.
func mountAt(dir int, name string) (id int, top bool, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags, unix.STATX_MNT_ID, &st); err != nil {
		return 0, false, err
	}
	return int(st.Mnt_id), st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// MakeDir makes a directory, but none above it, and says whether it did. What is
// made is the owner's and the group's only.
func MakeDir(path string) (made bool, err error) {
	return makeIn(path, func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o750) })
}

// MakeFile makes an empty file, which a device can be bound to, and says whether
// it did.
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

// Within says whether a path leads to one of some directories, into one or to
// one above it, also by way of what is bound elsewhere: what is mounted there
// would cover the directory, or a part of it.
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

// isBelow says whether a path is a directory or in it.
func isBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
