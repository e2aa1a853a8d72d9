package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// Mounts returns the mount points at and below a directory in the order of the mount table, which is that in which they
// were made. A path at which two mounts lie on top of each other occurs twice.
func Mounts(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	var paths []string
	for _, i := range infos {
		if i.Mountpoint == dir || strings.HasPrefix(i.Mountpoint, dir+"/") {
			paths = append(paths, i.Mountpoint)
		}
	}
	return paths, nil
}

// UnmountBelow unmounts everything at and below a directory, the last mount first. A mount that is
// in use is detached lazily. It may be repeated.
func UnmountBelow(dir string) error {
	const most = 1000
	for range most {
		paths, err := Mounts(dir)
		if err != nil || len(paths) == 0 {
			return err
		}
		if err := UnmountTop(paths[len(paths)-1], paths...); err != nil {
			return err
		}
	}
	return fmt.Errorf("mounts below %s reappear", dir)
}

// UnmountTop unmounts the topmost mount at a path, lazily if it is in use. Nothing that happens to these mounts is
// propagated to other mount namespaces then.
func UnmountTop(path string, mounts ...string) error {
	if err := mount.StopPropagation(mounts); err != nil {
		return err
	}
	err := mount.UnmountTop(path, false)
	if errors.Is(err, unix.EBUSY) {
		err = mount.UnmountTop(path, true)
	}
	return err
}

// detachLoops detaches the loop devices over files below a directory.
func detachLoops(dir string) error {
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("list loop devices: %w", err)
	}
	for _, b := range backing {
		name, err := os.ReadFile(b)
		if err != nil {
			continue // it was detached in the meantime
		}
		file := strings.TrimSuffix(string(name), "\n")
		if !strings.HasPrefix(file, dir+"/") {
			continue
		}
		if err := mount.LoopDetach(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// RemoveTree removes a directory with its content. It never enters a mount or follows a link, even
// if one is created while it runs. It may be repeated.
func RemoveTree(path string) error {
	parent, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	return removeAt(parent, filepath.Base(path), path)
}

func removeAt(parent int, name, path string) error {
	err := unix.Unlinkat(parent, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAt(fd, n, filepath.Join(path, n)); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
