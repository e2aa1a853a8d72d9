package progress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the polling interval; there is no event to wait for.
const tick = 10 * time.Millisecond

// looks is the number of ticks between two checks of the progress.
const looks = 50

// ErrStalled is the error of work that made no progress for the whole limit.
var ErrStalled = errors.New("no progress")

// idle is the processor time below which a process counts as waiting.
const idle = 10 * time.Second

// Wait waits until done returns true or an error, or ctx ends. It returns ErrStalled when state was constant for the
// limit and this process has not read, written or computed during that time. The limit is counted in polls, so a host
// that is too busy to run this process does not use it up.
func Wait(ctx context.Context, limit time.Duration, state func() string, done func() (bool, error)) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last, quiet := "", 0
	for turn := 0; ; turn++ {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if turn%looks == 0 {
			if now := state() + work(); now != last {
				last, quiet = now, 0
			}
		}
		if quiet++; quiet > int(limit/tick) {
			return fmt.Errorf("%w for %s: %s", ErrStalled, limit, last)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// work describes what this process has done so far.
func work() string {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return ""
	}
	computed := time.Duration(u.Utime.Nano() + u.Stime.Nano()).Truncate(idle)
	return fmt.Sprintf(" (%d blocks read, %d written, %d page faults, %s computed)", u.Inblock, u.Oublock,
		u.Majflt, computed)
}
