package local

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/mount"
)

// thawPatience is how long one try to lock a volume takes while another driver copies it.
const thawPatience = time.Minute

// thawAll thaws filesystems that a killed driver has left frozen: those of volumes that are not locked, because a
// driver holds the lock for as long as it has the filesystem frozen, and the kernel releases the lock of a killed one.
// A locked volume is in use by another driver, and is thawed when that driver has finished. stop ends the wait for
// those.
func thawAll(ctx context.Context, p *pool) (stop func(), err error) {
	all, err := p.list(volumes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var later sync.WaitGroup
	for _, v := range all {
		device, err := p.loops.Find(p.image(volumes, v.ID))
		if err != nil || device == "" {
			continue
		}
		if errors.Is(p.thaw(ctx, v.ID, 0), errBusy) {
			later.Go(func() {
				for ctx.Err() == nil && errors.Is(p.thaw(ctx, v.ID, thawPatience), errBusy) {
				}
			})
		}
	}
	return func() { cancel(); later.Wait() }, nil
}

// thaw thaws the filesystem of a volume once no operation holds the volume's lock; errBusy if that takes longer than
// the limit.
func (p *pool) thaw(ctx context.Context, id string, limit time.Duration) error {
	_, release, err := p.hold(ctx, volumes, id, unix.LOCK_EX, limit)
	if err != nil {
		return err
	}
	defer release()
	device, err := p.loops.Find(p.image(volumes, id))
	if err != nil || device == "" {
		return err
	}
	target, err := p.mountedAt(device)
	if err == nil && target != "" {
		mount.Thaw(target)
	}
	return err
}

// refuseRaw refuses a volume that is in use as a raw device: nothing can hold back its writes while others are copied.
func (p *pool) refuseRaw(v record, image string) error {
	device, err := p.loops.Find(image)
	if err != nil || device == "" {
		return err
	}
	mounted, err := p.mountedAt(device)
	if err != nil || mounted != "" {
		return err
	}
	at, err := p.shownAt(device)
	if err == nil && at != "" {
		err = status.Errorf(codes.FailedPrecondition, "volume %s is in use as a raw device at %s, and its writes cannot be "+
			"held back while others are copied; stop its Pods, or take it out of the group", v.ID, at)
	}
	return err
}
