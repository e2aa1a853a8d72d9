package storageprovider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// mounted returns what is mounted at the path of a Pod's volume. Of a block device, which is a link there, this is the
// device as a filesystem on it would be mounted.
func mounted(path string) (mount.Point, bool) {
	if p, is, err := mount.At(path); err != nil || is {
		return p, is && err == nil
	}
	device, err := deviceAt(path)
	if err != nil {
		return mount.Point{}, false
	}
	number, err := mount.DeviceOf(device)
	return mount.Point{Path: device, Device: number, Root: "/"}, err == nil
}

// deviceAt returns where the link to a block device leads.
func deviceAt(path string) (string, error) {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		return "", fmt.Errorf("device %s does not exist", path)
	}
	device, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("find device: %w", err)
	}
	return device, nil
}

// inUse returns which volumes are used by others than the node agent. Descriptors are checked first: a client that
// was given one mounts it, and then closes it.
func inUse(ctx context.Context, ours func(path string) bool) (func(mount.Point) bool, error) {
	opened, err := mount.FindOpened(ctx, ours)
	if err != nil {
		return nil, err
	}
	copies, err := mount.FindCopies(ctx, ours)
	if err != nil {
		return nil, err
	}
	return func(p mount.Point) bool {
		parts, held := mount.Parts(p.Device)
		return held || opened[p.Device] || copies.Of(p) || slices.ContainsFunc(parts[1:], func(part string) bool {
			return opened[part] || copies.Of(mount.Point{Device: part, Root: "/"})
		})
	}, nil
}

// errUnmounted says that a volume was unmounted while it was opened.
var errUnmounted = errors.New("the volume has just been unmounted")

// openVolume opens what is mounted at a path, and says whether it may only be read. It never returns the directory
// below after the volume was unmounted.
func openVolume(path string, block, readOnly bool) (file *os.File, isReadOnly bool, err error) {
	flags, access := unix.O_DIRECTORY|unix.O_NOFOLLOW, os.O_RDONLY
	if block {
		if path, err = deviceAt(path); err != nil {
			return nil, false, err
		}
		flags = unix.O_NOFOLLOW
		if !readOnly {
			access = os.O_RDWR
		}
	}
	if file, err = os.OpenFile(path, flags|access, 0); err != nil {
		return nil, false, fmt.Errorf("open the volume: %w", err)
	}
	if isReadOnly, err = check(file, path, block); err != nil {
		return nil, false, errors.Join(err, file.Close())
	}
	return file, isReadOnly || readOnly, nil
}

// check says whether an open file is what is mounted at a path, and read-only.
func check(file *os.File, path string, block bool) (readOnly bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_MNT_ID, &st)
	if err != nil {
		return false, os.NewSyscallError("statx", err)
	}
	if block {
		if st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return false, errUnmounted
		}
		return false, nil
	}
	point, is, err := mount.At(path)
	if err == nil && (!is || uint64(point.ID) != st.Mnt_id) {
		err = errUnmounted
	}
	return point.ReadOnly || point.NoWrites, err
}
