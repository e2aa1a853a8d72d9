package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
)

// copyStep is how much is copied between two looks at the context.
const copyStep = 8 << 20

// copyImage fills to with the data of an image, sharing blocks where the
// filesystem can and leaving holes where the image has holes.
func copyImage(ctx context.Context, from string, to *os.File) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	defer source.Close()
	if unix.IoctlFileClone(int(to.Fd()), int(source.Fd())) == nil {
		return nil
	}
	for at := int64(0); ; {
		start, err := source.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
		end, err := source.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
		if err := copyRange(ctx, source, to, start, end); err != nil {
			return err
		}
		at = end
	}
}

func copyRange(ctx context.Context, from, to *os.File, start, end int64) error {
	for at := start; at < end; at += copyStep {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
		n := min(copyStep, end-at)
		if _, err := io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, n)); err != nil {
			return fmt.Errorf("copy image: %w", err)
		}
	}
	return nil
}

// frozen runs f while no write can reach the image's filesystem, if it is
// mounted on this host.
func frozen(image string, f func() error) error {
	device, err := mount.LoopFind(image)
	if err != nil {
		return err
	}
	if device == "" {
		return f()
	}
	target, err := mountedAt(device)
	if err != nil {
		return err
	}
	if target == "" {
		return f()
	}
	thaw, err := mount.Freeze(target)
	if err != nil {
		return err
	}
	return errors.Join(f(), thaw())
}

// mountedAt returns a path where a device's filesystem is mounted, or "".
func mountedAt(device string) (string, error) {
	points, err := mount.Below("/")
	if err != nil {
		return "", err
	}
	for _, p := range points {
		if p.Source == device {
			return p.Path, nil
		}
	}
	return "", nil
}

// used says whether anything on this host shows the device: its filesystem or
// the device itself.
func used(device string) (bool, error) {
	points, err := mount.Below("/")
	if err != nil {
		return false, err
	}
	for _, p := range points {
		if shows(p, device) {
			return true, nil
		}
	}
	return false, nil
}

// shows says whether a mount is of the device's filesystem or of the device
// itself.
func shows(p mount.Point, device string) bool {
	return p.Source == device || p.Type == "devtmpfs" && p.Root == device[len("/dev"):]
}
