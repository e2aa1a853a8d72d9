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

// filesystem is how one type is made and grown.
type filesystem struct {
	// pkg is the Debian package of the tools.
	pkg string
	// mkfs are the program and its arguments before the device.
	mkfs []string
	// grow returns the program that fits the filesystem to its device while
	// it is mounted.
	grow func(device, target string) []string
	// smallest is the least size in bytes that the program accepts.
	smallest int64
}

func filesystems() map[string]filesystem {
	return map[string]filesystem{
		// The inode tables of a sparse, new file are zero already.
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

// SmallestFS returns the least size in bytes of a filesystem of that type, or
// ErrUnknownFS.
func SmallestFS(fsType string) (int64, error) {
	f, err := lookFS(fsType)
	return f.smallest, err
}

func lookFS(fsType string) (filesystem, error) {
	f, ok := filesystems()[fsType]
	if !ok {
		return f, fmt.Errorf("%w: %q; there are ext4, xfs and btrfs", ErrUnknownFS, fsType)
	}
	return f, nil
}

// Format makes a filesystem on a device that is blank. A device that already
// holds the same type is left as it is; one that holds anything else is
// refused.
func Format(ctx context.Context, device, fsType string) error {
	f, err := lookFS(fsType)
	if err != nil {
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
	if _, err := exec.LookPath(f.mkfs[0]); err != nil {
		return fmt.Errorf("format %s: %w: %s is not installed, install the package %s", device, ErrUnknownFS,
			f.mkfs[0], f.pkg)
	}
	return tool(ctx, f.mkfs[0], append(f.mkfs[1:], device)...)
}

// Probe names what a device holds: a filesystem's type, "partitions", or ""
// when it is blank.
func Probe(ctx context.Context, device string) (string, error) {
	out, err := toolOutput(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		// blkid's word for "nothing found", and for "cannot be read".
		return "", readable(device)
	}
	if err != nil {
		return "", fmt.Errorf("look what is on %s: %w", device, err)
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

// headSize is how many bytes of a device have to be readable before it is called
// blank. All that names a filesystem is there.
const headSize = 1 << 20

// readable refuses a device whose beginning cannot be read: nobody knows what it
// holds, and what makes a filesystem would overwrite it.
func readable(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("look what is on %s: %w", device, err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = io.ReadFull(io.NewSectionReader(f, 0, size), make([]byte, min(size, headSize)))
	}
	if err != nil {
		return fmt.Errorf("look what is on %s: %w", device, err)
	}
	return nil
}

// Grow fits the mounted filesystem at target to the size of its device.
func Grow(ctx context.Context, device, target, fsType string) error {
	f, err := lookFS(fsType)
	if err != nil {
		return err
	}
	args := f.grow(device, target)
	out, err := toolOutput(ctx, args[0], args[1:]...)
	if err != nil && strings.Contains(out, "Permission denied to resize") {
		return fmt.Errorf("grow %s: %w", device, ErrGrowLater)
	}
	return err
}

// GrowUnmounted fits a filesystem that is not mounted to the size of its
// device, if it is smaller and of a type that grows so. Grow does the rest.
// ErrNeedsPerson and ErrHeld are as for Device.
func GrowUnmounted(ctx context.Context, device, fsType string) error {
	if fsType != "ext4" {
		return nil
	}
	has, err := ext4Size(device)
	if err != nil {
		return err
	}
	size, err := DeviceSize(device)
	if err != nil || has+ext4Slack > size {
		return err
	}
	// resize2fs wants to see a check that is newer than the last mount.
	if err := fsck(ctx, device, "-f", "-p"); err != nil {
		return err
	}
	return tool(ctx, "resize2fs", device)
}

// ext4Slack is what of a device ext4 may leave unused: less than any growth.
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
	if binary.LittleEndian.Uint16(b[0x38:]) != 0xEF53 || shift > 6 || blocks > 1<<50 {
		return 0, fmt.Errorf("size of filesystem on %s: no ext4 superblock", device)
	}
	return int64(blocks << (10 + shift)), nil
}
