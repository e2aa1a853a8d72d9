package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// now returns the time of a clock that keeps running while the host is suspended. The monotonic clock of package time
// stops then, but leases expire, and other processes acquire them.
func (c *Client) now() time.Time { return time.Now().Add(c.asleep()) }

// asleep returns how long the host has been suspended since it was started.
func asleep() time.Duration {
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}
