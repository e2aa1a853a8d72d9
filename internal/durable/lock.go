package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("it is locked by another process")

// lockPause is the interval of attempts to lock.
const lockPause = 10 * time.Millisecond

// EndWait is how long to wait for the lock of a process that is ending: programs that it was just
// starting hold the lock a moment longer.
const EndWait = 2 * time.Second

// TryLock locks a file, which it creates if needed, or returns ErrLocked. Closing the file unlocks
// it; the kernel does so when the process ends.
func TryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !at(f, path) {
		// The previous holder may have removed the file: then others lock a new file of that name.
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Lock is TryLock that retries until the context ends.
func Lock(ctx context.Context, path string) (*os.File, error) {
	pause := time.NewTicker(lockPause)
	defer pause.Stop()
	for {
		f, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-pause.C:
		}
	}
}

// at says whether an open file is the one at a path.
func at(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(own, now)
}

// Boot returns the id of the host's current boot: mounts and processes do not survive a reboot.
func Boot() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
