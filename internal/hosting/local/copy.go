package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// copyStep is how many bytes are copied between two checks of the context.
const copyStep = 8 << 20

// copyImage fills to with the data of an image, sharing blocks where the
// filesystem can and leaving holes where the image has holes.
func copyImage(ctx context.Context, from string, to *os.File, log *slog.Logger) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	defer source.Close()
	// Data that is not on the disk yet may be reported as a hole.
	if err := source.Sync(); err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	if unix.IoctlFileClone(int(to.Fd()), int(source.Fd())) == nil {
		return nil
	}
	info, err := source.Stat()
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	p := newProgress(log, from, info)
	err = eachData(ctx, source, 0, func(at, length int64) error {
		n, err := io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(source, at, length))
		p.add(n)
		return err
	})
	if err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	return nil
}

// eachData calls do for every piece of a file from an offset on that is not a hole, at most copyStep bytes at a time.
func eachData(ctx context.Context, f *os.File, from int64, do func(at, length int64) error) error {
	for at := from; ; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = start; at < end; at += copyStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := do(at, min(copyStep, end-at)); err != nil {
				return err
			}
		}
		at = end
	}
}

// frozen calls f while the image's filesystem is frozen, if it is mounted on this host.
func (p *pool) frozen(image string, f func() error) error {
	thaw, err := p.freeze(image)
	if err != nil {
		return err
	}
	return errors.Join(f(), thaw())
}

// freeze freezes the image's filesystem until thaw is called, if it is mounted on this host. If another program has
// frozen it, thaw says whether it has been frozen all the time.
func (p *pool) freeze(image string) (thaw func() error, err error) {
	nothing := func() error { return nil }
	device, err := p.loops.Find(image)
	if err != nil || device == "" {
		return nothing, err
	}
	target, err := p.mountedAt(device)
	if err != nil {
		return nothing, err
	}
	if target == "" {
		// For a raw device, written data may not be in the image yet.
		return nothing, syncDevice(device)
	}
	thaw, err = mount.Freeze(target)
	if errors.Is(err, unix.EBUSY) {
		return func() error { return stillFrozen(target) }, nil
	}
	return thaw, err
}

// stillFrozen fails unless a filesystem is frozen that another program had frozen before, such as a backup that takes a
// snapshot. It stays frozen: that program thaws it.
func stillFrozen(target string) error {
	thaw, err := mount.Freeze(target)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil
	case err == nil:
		err = fmt.Errorf("another program has thawed the filesystem during the copy: %w", errBusy)
		return errors.Join(err, thaw())
	}
	return err
}

// A copy that takes longer than patience is logged, and again after each remind.
const (
	patience = 2 * time.Second
	remind   = 10 * time.Second
)

// progress logs how far a long copy is, because the writers of a mounted volume wait for its end.
type progress struct {
	log         *slog.Logger
	begun, told time.Time
	done, total int64
}

func newProgress(log *slog.Logger, image string, info fs.FileInfo) *progress {
	total := info.Size()
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		total = s.Blocks * 512 // without the holes
	}
	return &progress{log: log.With("driver", volume.LocalDriver, "image", image), begun: time.Now(), total: total}
}

// add counts more copied bytes.
func (p *progress) add(bytes int64) {
	p.done += bytes
	if now := time.Now(); now.Sub(p.begun) >= patience && now.Sub(p.told) >= remind {
		p.told = now
		p.log.Info("a full copy takes long; on xfs or btrfs the pool would share blocks",
			"copied", mebibytes(p.done), "of", mebibytes(p.total), "seconds", int(now.Sub(p.begun).Seconds()))
	}
}

func mebibytes(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }
