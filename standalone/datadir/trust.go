package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// plugins is the directory of FlexVolume drivers in a data directory, unless a user sets another one.
const plugins = "volumeplugins"

// reached refuses a path through a symbolic link, because the kernel shows mounts below it at another path.
func reached(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		if err := mount.CheckPath("data directory", at); err != nil {
			return fmt.Errorf("%w: %w with --data-dir", ErrLink, err)
		}
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return nil
		}
	}
}

// private refuses a directory in which other users can replace something, or could have before it was used here. It
// changes neither owners nor modes, because the path may be a mistake such as /tmp.
func private(path string) error {
	if err := owned(path); err != nil {
		return err
	}
	for _, dir := range []string{path, filepath.Join(path, "pki")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("data directory: %w", err)
		}
		for _, e := range entries {
			if err := owned(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// owned refuses a file or directory of another user, one to which others may write, and a link. An administrator may
// keep drivers and backups elsewhere.
func owned(path string) error {
	var s unix.Stat_t
	err := unix.Lstat(path, &s)
	isLink := err == nil && s.Mode&unix.S_IFMT == unix.S_IFLNK
	if isLink && slices.Contains([]string{Backups, plugins}, filepath.Base(path)) {
		err = unix.Stat(path, &s)
		isLink = false
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("data directory: %s: %w", path, err)
	case isLink:
		return fmt.Errorf("%w: %s is a symbolic link; mount what it leads to there (mount --bind), or remove it", ErrLink,
			path)
	case s.Uid != 0 && int(s.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to the user with the id %d, who can replace what is in it; if you trust its "+
			"content, run chown -R %d on it, or choose another directory with --data-dir", ErrOpen, path, s.Uid, os.Geteuid())
	case s.Mode&0o022 != 0:
		return fmt.Errorf("%w: others may write to %s (mode %04o); if you trust its content, run chmod go-w on it, or "+
			"choose another directory with --data-dir", ErrOpen, path, s.Mode&0o777)
	}
	return nil
}
