package sdnotify_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"volplane.dev/volplane/internal/process/sdnotify"
)

// listener is the socket of a service manager.
type listener struct {
	t      *testing.T
	socket *net.UnixConn
}

// listen has this process be the service of a manager, whose watchdog allows a time.
func listen(t *testing.T, watchdog string) listener {
	t.Helper()
	// Names of sockets are short, so the directory's is too.
	dir, err := os.MkdirTemp("", "n-")
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = socket.Close()
		_ = os.RemoveAll(dir)
	})
	t.Setenv("NOTIFY_SOCKET", at)
	t.Setenv("WATCHDOG_USEC", watchdog)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return listener{t, socket}
}

// hears returns what is sent within a time, "" if nothing is.
func (m listener) hears(within time.Duration) string {
	m.t.Helper()
	if err := m.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := m.socket.Read(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		m.t.Fatal(err)
	}
	return string(b[:n])
}

// silent drops what is under way, and says whether nothing comes after it.
func (m listener) silent() bool {
	for range 10 {
		if m.hears(200*time.Millisecond) == "" {
			return true
		}
	}
	return false
}

func TestNotify(t *testing.T) {
	m := listen(t, "")
	n := sdnotify.New()
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, there := os.LookupEnv(name); there {
			t.Errorf("programs that are started from here have %s", name)
		}
	}
	for _, state := range []string{sdnotify.Ready, sdnotify.Stopping} {
		n.Notify(state)
		if got := m.hears(time.Minute); got != state {
			t.Errorf("the service manager hears %q, want %q", got, state)
		}
	}
	sdnotify.New().Notify(sdnotify.Ready)
	if got := m.hears(50 * time.Millisecond); got != "" {
		t.Errorf("a process without a service manager says %q", got)
	}
}

// TestWatchdog: the watchdog hears of a process that works, and of none that fails or hangs, whether or not it notices
// that its time is over.
func TestWatchdog(t *testing.T) {
	// A check has ten milliseconds.
	m := listen(t, "40000")
	state := make(chan func(context.Context) error, 1)
	does := func(f func(context.Context) error) {
		<-state
		state <- f
	}
	works := func(context.Context) error { return nil }
	state <- works
	released := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sdnotify.New().Watch(ctx, func(ctx context.Context) error {
			f := <-state
			state <- f
			return f(ctx)
		}, slog.New(slog.DiscardHandler))
	}()
	hangs := func(context.Context) error {
		<-released
		return errors.New("late")
	}
	for name, broken := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errors.New("no") },
		"times out": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		for range 3 {
			if got := m.hears(time.Minute); got != "WATCHDOG=1" {
				t.Fatalf("while the process works, the watchdog hears %q", got)
			}
		}
		does(broken)
		if !m.silent() {
			t.Errorf("%s: the watchdog hears that the process works", name)
		}
		does(works)
	}
	does(hangs)
	if !m.silent() {
		t.Error("the watchdog hears that a process that hangs works")
	}
	does(works)
	close(released)
	if got := m.hears(time.Minute); got != "WATCHDOG=1" {
		t.Errorf("of a process that works again, the watchdog hears %q", got)
	}
	cancel()
	<-ended
	if !m.silent() {
		t.Error("the watchdog hears something after the end")
	}
}

// TestNoWatchdog: nothing is checked for a watchdog that is not there, that is not understood, or that is for another
// process.
func TestNoWatchdog(t *testing.T) {
	for _, c := range []struct{ watchdog, pid string }{{"", ""}, {"0", ""}, {"soon", ""}, {"40000", "1"}} {
		listen(t, c.watchdog)
		t.Setenv("WATCHDOG_PID", c.pid)
		sdnotify.New().Watch(t.Context(), func(context.Context) error {
			t.Errorf("%+v: the process is checked", c)
			return nil
		}, slog.New(slog.DiscardHandler))
	}
}
