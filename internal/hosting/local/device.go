package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// detachLimit is how long a device may stay open after its last use: programs that scan all devices
// open it for moments.
const detachLimit = 2 * time.Second

// attach creates the loop device of a locked volume for a use, in the volume's current size, or returns the existing
// one.
func (p *pool) attach(ctx context.Context, v record, u use) (string, error) {
	device, err := p.take(ctx, v, u)
	if err != nil {
		return "", err
	}
	// A loop device keeps the write protection that its previous user has set.
	is, err := readOnly(device)
	if err == nil && is {
		var at string
		if at, err = p.shownAt(device); err == nil && at == "" {
			err = setReadOnly(device, false)
		}
	}
	return device, errors.Join(err, mount.LoopResize(device))
}

// detach detaches the device of a locked volume. It fails if the device is mounted or open.
func (p *pool) detach(ctx context.Context, id string) error {
	image := p.image(volumes, id)
	device, err := p.loops.Find(image)
	if err != nil || device == "" {
		return err
	}
	at, err := p.shownAt(device)
	if err != nil {
		return err
	}
	if at != "" {
		return status.Errorf(codes.FailedPrecondition, "volume %s is in use at %s; unmount it there first", id, at)
	}
	if err := errors.Join(setReadOnly(device, false), p.loops.Detach(image)); err != nil {
		return err
	}
	err = until(ctx, detachLimit, func() (bool, error) {
		left, err := p.loops.Find(image)
		return left == "", err
	})
	if errors.Is(err, errBusy) {
		return p.stillOpen(ctx, id, device)
	}
	return err
}

// explain adds the cause to an error of a filesystem tool, which cannot know it: writes to the device fail when the
// disk of the pool is full.
func (p *pool) explain(err error) error {
	const next = 1 << 20
	if u, statErr := mount.Stat(p.dir); statErr == nil && u.Available < next {
		return fmt.Errorf("%w (%w in %s)", err, unix.ENOSPC, p.dir)
	}
	return err
}

// byHand detaches the device and adds to an ErrNeedsPerson how to reach the filesystem by hand. While the user holds
// the lock, no driver uses the volume.
func (p *pool) byHand(v record, err error) error {
	if !errors.Is(err, mount.ErrNeedsPerson) {
		return err
	}
	image := p.image(volumes, v.ID)
	return fmt.Errorf("the filesystem of volume %s %w: run flock %s e2fsck -f %s", v.ID,
		mount.ErrNeedsPerson, image, image)
}

// mountedAt returns a path at which a device's filesystem can be reached, or "".
func (p *pool) mountedAt(device string) (string, error) {
	points, err := p.mounts.All()
	if err != nil {
		return "", err
	}
	for _, one := range points {
		if one.Source != device {
			continue
		}
		// The mount may be hidden by another one.
		if top, _, err := p.mounts.At(one.Path); err != nil || top.Source == device {
			return one.Path, err
		}
	}
	return "", nil
}

// shownAt returns a path at which the device's filesystem or the device itself is mounted, or "".
func (p *pool) shownAt(device string, except ...string) (string, error) {
	points, err := p.mounts.All()
	if err != nil {
		return "", err
	}
	for _, one := range points {
		if shows(one, device) && !slices.Contains(except, one.Path) {
			return one.Path, nil
		}
	}
	return "", nil
}

// shows says whether a mount is of the device's filesystem or of the device
// itself.
func shows(p mount.Point, device string) bool {
	return device != "" && (p.Source == device || p.Type == "devtmpfs" && p.Root == device[len("/dev"):])
}

// checkOurs fails unless the mount at path is that of the volume with the device; device is "" if the volume has none.
func checkOurs(v record, device, path string) error {
	at, mounted, err := mount.Look(path)
	if err != nil || !mounted || shows(at, device) {
		return err
	}
	return status.Errorf(codes.FailedPrecondition, "volume %s is not at %s, %.128q is; nothing was unmounted", v.ID,
		path, at.Source)
}

func syncDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("sync %s: %w", device, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", device, err)
	}
	return nil
}

// readOnly says whether a device refuses writes; setReadOnly sets that. A read-only bind mount does
// not prevent writes to a device.
func readOnly(device string) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", device, err)
	}
	defer f.Close()
	flag, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	if err != nil {
		return false, fmt.Errorf("stat %s: %w", device, err)
	}
	return flag != 0, nil
}

func setReadOnly(device string, to bool) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("make %s read-only or writable: %w", device, err)
	}
	defer f.Close()
	flag := 0
	if to {
		flag = 1
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.BLKROSET, flag); err != nil {
		return fmt.Errorf("make %s read-only or writable: %w", device, err)
	}
	return nil
}
