// Package sdnotify tells the service manager, systemd or another, how the service of this process is, as sd_notify(3)
// describes it.
package sdnotify

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// States of a service.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	alive    = "WATCHDOG=1"
)

// checks is how often the process is checked within the time that the watchdog allows: one failure alone ends nothing.
const checks = 4

// Notifier notifies the service manager. Without one it does nothing.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// New returns the notifier of this process. It takes what the service manager has put into the environment, so that
// neither a library nor a program that is started from here speaks for the process.
func New() *Notifier {
	n := &Notifier{socket: take("NOTIFY_SOCKET")}
	most, err := strconv.ParseInt(take("WATCHDOG_USEC"), 10, 64)
	if pid := take("WATCHDOG_PID"); err == nil && most > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(most) * time.Microsecond
	}
	return n
}

func take(variable string) string {
	value := os.Getenv(variable)
	_ = os.Unsetenv(variable)
	return value
}

// Notify sends a state. If that fails, the service manager acts as if nothing was sent.
func (n *Notifier) Notify(state string) {
	if n.socket == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	_, _ = c.Write([]byte(state))
	_ = c.Close()
}

// Watch tells the watchdog until ctx ends that the process works, each time that works returns nil. A process that
// hangs tells nothing, and is restarted. A check has a quarter of the watchdog's time.
func (n *Notifier) Watch(ctx context.Context, works func(context.Context) error, log *slog.Logger) {
	if n.socket == "" || n.watchdog == 0 {
		return
	}
	tick := time.NewTicker(n.watchdog / checks)
	defer tick.Stop()
	for {
		check, end := context.WithTimeout(ctx, n.watchdog/checks)
		err := works(check)
		end()
		switch {
		case err == nil:
			n.Notify(alive)
		case ctx.Err() == nil:
			log.Warn("this process does not work as it should, so the watchdog hears nothing", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
