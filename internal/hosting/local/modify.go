package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

// preallocate is the attribute that a VolumeAttributesClass may have: "true" gives a volume all of its space on the
// disk immediately, so that no other volume can take it; with "false" it takes space as it is written, and keeps
// what it has.
const preallocate = "preallocate"

// errNoPreallocation says that the filesystem of the pool cannot give files space that they have not used.
var errNoPreallocation = errors.New("the filesystem of the pool cannot preallocate files")

// attributes reads the parameters of a VolumeAttributesClass. given is false if they have none.
func attributes(all map[string]string) (preallocated, given bool, err error) {
	for key, value := range all {
		if key != preallocate {
			return false, false, status.Errorf(codes.InvalidArgument,
				"attribute %.128q is not known; there is %s=true or false", key, preallocate)
		}
		if preallocated, err = strconv.ParseBool(value); err != nil {
			return false, false, status.Errorf(codes.InvalidArgument,
				"attribute %s=%.128q is neither true nor false", key, value)
		}
		given = true
	}
	return preallocated, given, nil
}

// ControllerModifyVolume gives a volume other attributes. It may be repeated, even after an earlier call was
// interrupted: the space is allocated first, and is kept if the disk becomes full before all of it is allocated.
func (c *controller) ControllerModifyVolume(
	ctx context.Context, r *csipb.ControllerModifyVolumeRequest,
) (*csipb.ControllerModifyVolumeResponse, error) {
	preallocated, given, err := attributes(r.GetMutableParameters())
	if err != nil {
		return nil, err
	}
	v, release, err := c.pool.hold(ctx, volumes, r.GetVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return nil, failure(err)
	}
	defer release()
	if !given || preallocated == v.Preallocated {
		return &csipb.ControllerModifyVolumeResponse{}, nil
	}
	if preallocated {
		if err := c.pool.allocate(v.ID, v.Size, c.keep); err != nil {
			return nil, failure(err)
		}
	}
	v.Preallocated = preallocated
	if err := c.pool.rewrite(v); err != nil {
		return nil, failure(err)
	}
	return &csipb.ControllerModifyVolumeResponse{}, nil
}

// allocate allocates space for the image of a volume that the caller holds, up to size, which may be more than it has.
func (p *pool) allocate(id string, size, keep int64) error {
	image, err := os.OpenFile(p.image(volumes, id), os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("preallocate %s: %w", id, err)
	}
	defer image.Close()
	return p.reserve(image, size, keep)
}

// reserve gives an image space up to size, and leaves its size as it is. It leaves keep bytes of the disk to others.
func (p *pool) reserve(image *os.File, size, keep int64) error {
	usage, err := mount.Stat(p.dir)
	if err != nil {
		return err
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &info); err != nil {
		return err
	}
	if missing := size - info.Blocks*512; missing > usage.Available-keep {
		return fmt.Errorf("preallocate %d bytes, of which %d are missing: %w", size, missing, unix.ENOSPC)
	}
	err = ignoringInterrupts(func() error {
		return unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errNoPreallocation
	}
	if err != nil {
		return fmt.Errorf("preallocate %d bytes: %w", size, err)
	}
	// Space that is shared with a copy is not the volume's own: writing to it would need other space. Filesystems without
	// shared space refuse the flag.
	err = ignoringInterrupts(func() error {
		return unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_UNSHARE_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size)
	})
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("take %d bytes out of what is shared with copies: %w", info.Size, err)
	}
	return nil
}

// rewrite replaces the record of a volume that the caller holds.
func (p *pool) rewrite(r record) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := durable.WriteJSON(filepath.Join(p.path(volumes, r.ID), recordFile), r); err != nil {
		return fmt.Errorf("change %s: %w", r.ID, err)
	}
	return nil
}
