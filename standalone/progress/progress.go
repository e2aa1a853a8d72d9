package progress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the pause between two looks; there is nothing that could be watched.
const tick = 10 * time.Millisecond

// looks is the number of ticks between two looks at what moves.
const looks = 50

// ErrStalled says that nothing moved for the whole limit.
var ErrStalled = errors.New("nothing moves any more")

// idle is what a process that only waits needs less of in a limit of minutes.
const idle = 10 * time.Second

// Wait returns when done does or fails, when ctx ends, or with ErrStalled when
// state has stayed the same for the limit, and this process has neither read
// nor written nor computed. The limit is counted in turns that this process really got: on a host
// that is too busy to let it run, it has not waited.
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

// work says what this process has done so far.
func work() string {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return ""
	}
	computed := time.Duration(u.Utime.Nano() + u.Stime.Nano()).Truncate(idle)
	return fmt.Sprintf(" (%d blocks read, %d written, %d page faults, %s computed)", u.Inblock, u.Oublock,
		u.Majflt, computed)
}
