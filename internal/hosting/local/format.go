package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

// formatting says whether the driver was killed while it was making a filesystem on a volume. Such a volume has not
// been mounted since.
func (p *pool) formatting(id string) bool {
	_, err := os.Lstat(p.formattingPath(id))
	return err == nil
}

func (p *pool) formattingPath(id string) string {
	return filepath.Join(p.path(volumes, id), formattingFile)
}

// restartFormat erases a volume whose filesystem was not finished.
func (p *pool) restartFormat(ctx context.Context, v record) error {
	if !p.formatting(v.ID) {
		return nil
	}
	image := p.image(volumes, v.ID)
	device, err := p.loops.Find(image)
	if err != nil {
		return err
	}
	if device != "" {
		// mkfs may have survived the driver that has started it.
		f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("format %s: %w", v.ID, errBusy)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return fmt.Errorf("format %s: %w", v.ID, err)
		}
		if err := p.detach(ctx, v.ID); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Truncate(image, 0), os.Truncate(image, v.Size)); err != nil {
		return fmt.Errorf("format %s: %w", v.ID, err)
	}
	return nil
}

// format makes a filesystem on a volume that contains nothing but zeros, and says whether it has. Probing is not
// enough: no tool knows every format, and a tool that cannot read a device finds nothing.
func (p *pool) format(ctx context.Context, v record, device, fsType string) (made bool, err error) {
	has, err := mount.Probe(ctx, device)
	if err != nil {
		return false, err
	}
	if has != "" {
		// This does nothing, or returns the error that names the content.
		return false, mount.Format(ctx, device, fsType)
	}
	if err := syncDevice(device); err != nil {
		return false, err
	}
	blank, err := isBlank(ctx, p.image(volumes, v.ID))
	if err != nil {
		return false, err
	}
	if !blank {
		return false, status.Errorf(codes.FailedPrecondition, "volume %s holds data but no filesystem that is known; it is "+
			"never formatted: use it as a raw block volume, or delete it", v.ID)
	}
	if err := durable.WriteFile(p.formattingPath(v.ID), nil); err != nil {
		return false, err
	}
	if err := mount.FormatBlank(ctx, device, fsType); err != nil {
		return false, err
	}
	return true, durable.Remove(p.formattingPath(v.ID))
}

// isBlank says whether an image holds nothing but zeros.
func isBlank(ctx context.Context, image string) (bool, error) {
	f, err := os.Open(image)
	if err != nil {
		return false, fmt.Errorf("look for data: %w", err)
	}
	defer f.Close()
	blank := true
	err = eachData(ctx, f, 0, func(at, length int64) error {
		found, err := io.ReadAll(io.NewSectionReader(f, at, length))
		for _, b := range found {
			blank = blank && b == 0
		}
		if err == nil && !blank {
			err = io.EOF
		}
		return err
	})
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return blank, err
}

// The superblock of btrfs is at 64 KiB. Its byte 0x60 is the address of its log, 0 if there is none
// (Linux, include/uapi/linux/btrfs_tree.h).
const btrfsLogRoot = 64<<10 + 0x60

// distinguish gives a copy its own filesystem id where two filesystems with one id cannot be mounted on one host: btrfs
// before Linux 6.7. Changing the id would lose a log that was not replayed, so a copy with such a log keeps it.
func distinguish(ctx context.Context, image, fsType string) error {
	if fsType != "btrfs" {
		return nil
	}
	if has, err := mount.Probe(ctx, image); err != nil || has != fsType {
		return err
	}
	f, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("give copy an identity: %w", err)
	}
	defer f.Close()
	var logRoot [8]byte
	if _, err := f.ReadAt(logRoot[:], btrfsLogRoot); err != nil {
		return fmt.Errorf("give copy an identity: %w", err)
	}
	if binary.LittleEndian.Uint64(logRoot[:]) != 0 {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "btrfstune", "-m", image).CombinedOutput(); err != nil {
		return fmt.Errorf("give copy an identity: btrfstune: %w: %.300s", err, out)
	}
	return nil
}
