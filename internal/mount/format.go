package mount

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// filesystem describes how filesystems of one type are made and expanded.
type filesystem struct {
	// pkg is the Debian package of the tools.
	pkg string
	// mkfs is the program that makes the filesystem, with its arguments before the device.
	mkfs []string
	// grow returns the program that expands the mounted filesystem to the size of its device, with
	// its arguments.
	grow func(device, target string) []string
	// smallest is the smallest size in bytes that the program accepts.
	smallest int64
}

func filesystems() map[string]filesystem {
	return map[string]filesystem{
		// The inode tables of a new, sparse file are zero already.
		"ext4": {
			pkg: "e2fsprogs", smallest: 1 << 20,
			mkfs: []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"},
			grow: func(device, _ string) []string { return []string{"resize2fs", device} },
		},
		"xfs": {
			pkg: "xfsprogs", smallest: 300 << 20,
			mkfs: []string{"mkfs.xfs", "-q", "-f", "-K"},
			grow: func(_, target string) []string { return []string{"xfs_growfs", target} },
		},
		"btrfs": {
			pkg: "btrfs-progs", smallest: 114 << 20,
			mkfs: []string{"mkfs.btrfs", "-q", "-f", "-K"},
			grow: func(_, target string) []string { return []string{"btrfs", "filesystem", "resize", "max", target} },
		},
	}
}

// SmallestFS returns the smallest size in bytes of a filesystem of a type, or ErrUnknownFS.
func SmallestFS(fsType string) (int64, error) {
	f, err := lookFS(fsType)
	return f.smallest, err
}

func lookFS(fsType string) (filesystem, error) {
	f, ok := filesystems()[fsType]
	if !ok {
		return f, fmt.Errorf("%w: %q; supported are ext4, xfs and btrfs", ErrUnknownFS, fsType)
	}
	return f, nil
}

// Format makes a filesystem on a blank device. If the device has a filesystem of the same type already, it is left as
// it is; the error for other content is ErrNotBlank. It may be repeated.
func Format(ctx context.Context, device, fsType string) error {
	if _, err := lookFS(fsType); err != nil {
		return err
	}
	has, err := Probe(ctx, device)
	switch {
	case err != nil:
		return err
	case has == fsType:
		return nil
	case has != "":
		return fmt.Errorf("format %s as %s: %w: it holds %s", device, fsType, ErrNotBlank, has)
	}
	return FormatBlank(ctx, device, fsType)
}

// FormatBlank makes a filesystem on a device that the caller holds, and has checked to be blank: it is overwritten.
func FormatBlank(ctx context.Context, device, fsType string) error {
	f, err := lookFS(fsType)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(f.mkfs[0]); err != nil {
		return fmt.Errorf("format %s: %w: %s is not installed, install the package %s", device, ErrUnknownFS,
			f.mkfs[0], f.pkg)
	}
	return tool(ctx, f.mkfs[0], append(f.mkfs[1:], device)...)
}

// Probe returns the content of a device: the type of its filesystem, "partitions", or "" if it is
// blank.
func Probe(ctx context.Context, device string) (string, error) {
	out, err := toolOutput(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		// blkid has the same exit code for "nothing found" and "cannot be read".
		return "", readable(device)
	}
	if err != nil {
		return "", fmt.Errorf("probe %s: %w", device, err)
	}
	found := ""
	for line := range strings.Lines(out) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key {
		case "TYPE":
			return value, nil
		case "PTTYPE":
			found = "partitions"
		}
	}
	return found, nil
}

// headSize is how many bytes at the beginning of a device must be readable before the device counts as blank. All
// filesystem signatures are in that range.
const headSize = 1 << 20

// readable fails if the beginning of a device cannot be read: its content is unknown then, and mkfs
// would overwrite it.
func readable(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("probe %s: %w", device, err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = io.CopyN(io.Discard, io.NewSectionReader(f, 0, size), min(size, headSize))
	}
	if err != nil {
		return fmt.Errorf("probe %s: %w", device, err)
	}
	return nil
}

// Expand expands the mounted filesystem at target to the size of its device. It may be repeated.
func Expand(ctx context.Context, device, target, fsType string) error {
	f, err := lookFS(fsType)
	if err != nil {
		return err
	}
	if fsType == "ext4" {
		if fits, err := ext4Fits(device); err != nil || fits {
			return err
		}
	}
	args := f.grow(device, target)
	out, err := toolOutput(ctx, args[0], args[1:]...)
	if err != nil && strings.Contains(out, "Permission denied to resize") {
		return fmt.Errorf("expand %s: %w", device, ErrExpandLater)
	}
	return err
}

// ExpandUnmounted expands a filesystem to the size of its device if it is not mounted, in any mount namespace, and its
// type can be expanded so; for others it does nothing, and Expand expands them later. ErrNeedsPerson and
// ErrHeld are as for Device. It may be repeated.
func ExpandUnmounted(ctx context.Context, device, fsType string) error {
	if fsType != "ext4" || !unmounted(device) {
		return nil
	}
	if fits, err := ext4Fits(device); err != nil || fits {
		return err
	}
	// resize2fs requires a check that is newer than the last mount.
	if err := fsck(ctx, device, "-f", "-p"); err != nil {
		return err
	}
	return tool(ctx, "resize2fs", device)
}

// ext4Fits says whether a filesystem is as large as its device, mounted or not: the kernel shows its superblock in
// memory.
func ext4Fits(device string) (bool, error) {
	has, err := ext4Size(device)
	if err != nil {
		return false, err
	}
	size, err := DeviceSize(device)
	return has+ext4Slack > size, err
}

// ext4Slack is how many bytes of a device ext4 may leave unused: less than any expansion.
const ext4Slack = 64 << 10

// ext4Size reads the size of a filesystem from its superblock, at byte 1024:
// the number of blocks in two halves at 0x4 and 0x150, and the block size as a
// power of two at 0x18 (Linux, Documentation/filesystems/ext4/super.rst).
func ext4Size(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, fmt.Errorf("size of filesystem on %s: %w", device, err)
	}
	defer f.Close()
	var b [0x154]byte
	if _, err := f.ReadAt(b[:], 1024); err != nil {
		return 0, fmt.Errorf("size of filesystem on %s: %w", device, err)
	}
	blocks := uint64(binary.LittleEndian.Uint32(b[0x4:])) | uint64(binary.LittleEndian.Uint32(b[0x150:]))<<32
	shift := binary.LittleEndian.Uint32(b[0x18:])
	if binary.LittleEndian.Uint16(b[0x38:]) != 0xEF53 || shift > 6 {
		return 0, fmt.Errorf("size of filesystem on %s: no ext4 superblock", device)
	}
	return product(device, blocks, 1024<<shift)
}
