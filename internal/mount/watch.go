package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Watch calls changed when it has started to watch, and after mounts and unmounts, at most once in each pause, until
// ctx ends.
func Watch(ctx context.Context, pause time.Duration, changed func()) error {
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("watch mount table: %w", err)
	}
	defer unix.Close(table)
	// Closing the writing end ends the wait.
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("watch mount table: %w", err)
	}
	defer reader.Close()
	defer writer.Close()
	defer context.AfterFunc(ctx, func() { _ = writer.Close() })()
	ended := int32(reader.Fd())
	changed()
	for {
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: ended}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch mount table: %w", err)
		}
		if fds[0].Revents == 0 && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			changed()
		}
	}
}
