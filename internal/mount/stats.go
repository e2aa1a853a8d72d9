package mount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is the space of a filesystem, in bytes and inodes.
type Usage struct {
	Total, Used, Available              int64
	Inodes, InodesUsed, InodesAvailable int64
}

// Stat returns the space of the filesystem at a path. It blocks if the filesystem does not answer.
func Stat(path string) (Usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return Usage{}, fmt.Errorf("size of filesystem at %s: %w", path, err)
	}
	block := s.Frsize
	return Usage{
		Total: int64(s.Blocks) * block, Used: int64(s.Blocks-s.Bfree) * block, Available: int64(s.Bavail) * block,
		Inodes: int64(s.Files), InodesUsed: int64(s.Files - s.Ffree), InodesAvailable: int64(s.Ffree),
	}, nil
}

// ShutDown says whether the kernel has shut down a filesystem after an error, so that it is of no use until it is
// mounted again, and the mount table does not say so, as it does not of xfs: not even its top directory can be looked
// at then.
func ShutDown(at Point) bool {
	if at.Type != "xfs" {
		return false
	}
	_, err := statxAt(unix.AT_FDCWD, at.Path, unix.STATX_TYPE)
	return errors.Is(err, unix.EIO)
}

// SharesBlocks says whether the copy of a file in a directory can share the blocks of the file, which takes neither
// room nor time.
func SharesBlocks(dir string) (bool, error) {
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false, fmt.Errorf("try whether files share blocks: %w", err)
		}
		defer f.Close()
		files[i] = f
	}
	return unix.IoctlFileClone(int(files[1].Fd()), int(files[0].Fd())) == nil, nil
}

// DeviceSize returns the size of a block device in bytes.
func DeviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", device, err)
	}
	defer f.Close()
	size, err := f.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", device, err)
	}
	return size, nil
}

// IsDevice says whether there is a block device at a path, as a bind mount or a node.
func IsDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
}
