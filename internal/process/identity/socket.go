package identity

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unacknowledged is how long sent data may stay unacknowledged before the connection is given up.
const unacknowledged = 10 * time.Second

// limitUnacknowledged is net.Dialer's Control. The kernel's own limit is a quarter of an hour.
func limitUnacknowledged(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged/time.Millisecond))
	})
	if err != nil {
		return err
	}
	return failed
}
