package mount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxBytes is the largest size that is believed of a filesystem.
const maxBytes = math.MaxInt64 / 2

// Size returns the size in bytes of the filesystem that is mounted at a point, including its own overhead, and the size
// of its device. The device's size is 0 if the filesystem's is not known exactly: it is the room for files then. Size
// blocks if the filesystem does not respond.
func Size(at Point) (filesystem, device int64, err error) {
	var exact func(Point) (int64, error)
	switch at.Type {
	case "ext2", "ext3", "ext4":
		exact = func(at Point) (int64, error) { return ext4Size(at.Source) }
	case "xfs":
		exact = xfsSize
	case "btrfs":
		exact = btrfsSize
	}
	if exact != nil && strings.HasPrefix(at.Source, "/dev/") {
		if filesystem, err = exact(at); err == nil {
			device, err = DeviceSize(at.Source)
		}
		if err == nil {
			return filesystem, device, nil
		}
	}
	usage, err := Stat(at.Path)
	return usage.Total, 0, err
}

// The ioctls XFS_IOC_FSGEOMETRY_V1, BTRFS_IOC_FS_INFO and BTRFS_IOC_DEV_INFO, which x/sys does not define. They report
// an expansion that is not in the superblock yet.
const (
	ioctlXfsGeometry = 0x80705864
	ioctlBtrfsInfo   = 0x8400941F
	ioctlBtrfsDevice = 0xD000941E
)

// xfsSize returns the number of blocks, at 32 in the kernel's answer, times the size of one, at 0
// (Linux, fs/xfs/libxfs/xfs_fs.h).
func xfsSize(at Point) (int64, error) {
	var geometry [112]byte
	if err := ask(at.Path, ioctlXfsGeometry, geometry[:]); err != nil {
		return 0, err
	}
	return product(at.Path, binary.NativeEndian.Uint64(geometry[32:]), uint64(binary.NativeEndian.Uint32(geometry[:])))
}

// btrfsSize returns how much of its only device a filesystem has, at 32 in the kernel's answer about the device of the
// highest number. That number is at 0 in the answer about the filesystem, and that of the devices at 8
// (Linux, include/uapi/linux/btrfs.h).
func btrfsSize(at Point) (int64, error) {
	var info [1024]byte
	if err := ask(at.Path, ioctlBtrfsInfo, info[:]); err != nil {
		return 0, err
	}
	if n := binary.NativeEndian.Uint64(info[8:]); n != 1 {
		return 0, fmt.Errorf("size of filesystem at %s: it has %d devices", at.Path, n)
	}
	var device [4096]byte
	copy(device[:8], info[:8])
	if err := ask(at.Path, ioctlBtrfsDevice, device[:]); err != nil {
		return 0, err
	}
	return product(at.Path, binary.NativeEndian.Uint64(device[32:]), 1)
}

// ask sends an ioctl to the filesystem that is mounted at a path. Input and result are in data.
func ask(path string, ioctl uintptr, data []byte) error {
	top, err := openTop(path)
	if err != nil {
		return fail("size of filesystem at", path, err)
	}
	defer unix.Close(top)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(top), ioctl, uintptr(unsafe.Pointer(&data[0])))
	if errno != 0 {
		return fail("size of filesystem at", path, errno)
	}
	return nil
}

// product returns the size of a number of blocks, if it is valid: the numbers come from a disk with untrusted content.
func product(where string, blocks, size uint64) (int64, error) {
	if blocks == 0 || size == 0 || blocks > maxBytes/size {
		return 0, fmt.Errorf("size of filesystem at %s: %d blocks of %d bytes cannot be", where, blocks, size)
	}
	return int64(blocks * size), nil
}

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

// ShutDown says whether the kernel has shut down a filesystem after an error, which the mount table does not show for
// xfs. It is of no use until it is mounted again: not even its top directory can be read.
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
