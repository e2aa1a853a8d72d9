package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

const (
	// holdLimit is how long an operation waits for another one on the same volume. Copies take longer; a call that waits
	// for a copy fails and has to be repeated.
	holdLimit = 10 * time.Second
	// pollInterval is the interval between attempts to take a lock.
	pollInterval = 10 * time.Millisecond
)

// hold locks a volume or snapshot for one operation, across all processes; operations with shared locks may overlap. It
// waits for others until the limit, and returns the record as of then. A holder may lock the pool; the holder of the
// pool's lock must not call hold.
func (p *pool) hold(ctx context.Context, k kind, id string, how int, limit time.Duration) (record, func(), error) {
	for {
		r, err := p.get(k, id)
		if err != nil {
			return r, nil, err
		}
		f, err := os.OpenFile(p.image(k, id), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has been deleted since, as get will report
		}
		if err != nil {
			return r, nil, fmt.Errorf("lock %s: %w", id, err)
		}
		err = until(ctx, limit, func() (bool, error) {
			err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
			if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
				return false, nil
			}
			return true, err
		})
		if err != nil {
			return r, nil, errors.Join(fmt.Errorf("lock %s: %w", id, err), f.Close())
		}
		// It may have been deleted and recreated, or expanded, in the meantime.
		if r, err = p.get(k, id); err == nil && !sameFile(f, p.image(k, id)) {
			_ = f.Close()
			continue
		}
		if err != nil {
			return r, nil, errors.Join(err, f.Close())
		}
		return r, func() { _ = f.Close() }, nil
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// until calls f repeatedly until it returns true or an error; errBusy if that takes longer than the
// limit.
func until(ctx context.Context, limit time.Duration, f func() (bool, error)) error {
	if done, err := f(); done || err != nil {
		return err
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return errBusy
		case <-tick.C:
			if done, err := f(); done || err != nil {
				return err
			}
		}
	}
}

// add creates the entry r with an image that fill writes, atomically. If an entry with the id has
// appeared in the meantime, that one is returned.
func (p *pool) add(ctx context.Context, k kind, r record, fill func(image *os.File) error) (record, error) {
	dir, image, err := p.begin(k)
	if err != nil {
		return r, fmt.Errorf("make %s: %w", r.ID, err)
	}
	// It is locked until here, so that sweep does not delete it.
	defer image.Close()
	if err := finish(dir, image, r, fill); err != nil {
		return r, errors.Join(fmt.Errorf("make %s: %w", r.ID, err), removeEntry(dir))
	}
	placed, err := p.place(ctx, k, r.ID, dir, func() error {
		existing, err := p.get(k, r.ID)
		if err == nil {
			r = existing
		}
		return err
	})
	if !placed {
		err = errors.Join(err, removeEntry(dir))
	}
	return r, err
}

// place makes a finished directory that of an id, unless read finds that there is one already.
func (p *pool) place(ctx context.Context, k kind, id, dir string, read func() error) (placed bool, err error) {
	unlock, err := p.lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	// A caller that has stopped waiting may have deleted the volume, or created it elsewhere:
	// nothing may appear after that.
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("make %s: %w", id, err)
	}
	if err := read(); !errors.Is(err, errMissing) {
		return false, err
	}
	if err := os.Rename(dir, p.path(k, id)); err != nil {
		return false, fmt.Errorf("make %s: %w", id, err)
	}
	return true, durable.Sync(filepath.Join(p.dir, string(k)))
}

// begin creates a new directory with an empty image that is locked until it is closed. The pool is
// locked until then, so that a sweep sees either nothing or a locked image.
func (p *pool) begin(k kind) (string, *os.File, error) {
	unlock, err := p.lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(filepath.Join(p.dir, string(k)), ".new-")
	if err != nil {
		return "", nil, err
	}
	image, err := newImage(dir)
	if err != nil {
		return "", nil, errors.Join(err, removeEntry(dir))
	}
	return dir, image, nil
}

// newImage creates an empty image that is locked until it is closed.
func newImage(dir string) (*os.File, error) {
	image, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(image.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, image.Close())
	}
	return image, nil
}

// finish writes the image, sets its size to that of r, and syncs everything.
func finish(dir string, image *os.File, r record, fill func(image *os.File) error) error {
	if err := fill(image); err != nil {
		return err
	}
	info, err := image.Stat()
	if err != nil {
		return err
	}
	// Truncating a copy would destroy its filesystem.
	if info.Size() > r.Size {
		return fmt.Errorf("the copy has %d bytes, more than the %d there should be", info.Size(), r.Size)
	}
	if err := image.Truncate(r.Size); err != nil {
		return err
	}
	if err := image.Sync(); err != nil {
		return err
	}
	return durable.WriteJSON(filepath.Join(dir, recordFile), r)
}

// publish reserves a volume for a node.
func (p *pool) publish(id, node string) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	v, err := p.get(volumes, id)
	if err != nil || v.Node == node {
		return err
	}
	if v.Node != "" {
		return publishedTo(v)
	}
	return durable.WriteFile(filepath.Join(p.path(volumes, id), nodeFile), []byte(node))
}

// unpublish ends the reservation for a node; for any node if node is "".
func (p *pool) unpublish(id, node string) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	v, err := p.get(volumes, id)
	if err != nil || node != "" && v.Node != node {
		return err
	}
	return durable.Remove(filepath.Join(p.path(volumes, id), nodeFile))
}

// grow expands the image of a volume, and never shrinks it. The caller holds the volume.
func (p *pool) grow(id string, size int64) error {
	image, err := os.OpenFile(p.image(volumes, id), os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("expand %s: %w", id, err)
	}
	defer image.Close()
	info, err := image.Stat()
	if err == nil && info.Size() < size {
		err = errors.Join(image.Truncate(size), image.Sync())
	}
	if err != nil {
		return fmt.Errorf("expand %s: %w", id, err)
	}
	return nil
}

// remove deletes an entry that the caller holds, if check agrees.
func (p *pool) remove(k kind, id string, check func(record) error) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := p.get(k, id)
	if err != nil {
		return err
	}
	if err := check(r); err != nil {
		return err
	}
	return p.discard(k, id, removeEntry)
}

// discard deletes the directory of an id. The rename comes first: a driver that is killed after it leaves garbage for
// sweep, not half a volume.
func (p *pool) discard(k kind, id string, remove func(dir string) error) error {
	parent := filepath.Join(p.dir, string(k))
	garbage := filepath.Join(parent, ".new-gone-"+id)
	// A killed driver may have left one with the same id.
	err := remove(garbage)
	if err == nil {
		err = os.Rename(p.path(k, id), garbage)
	}
	if err == nil {
		err = durable.Sync(parent)
	}
	if err == nil {
		err = remove(garbage)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}
