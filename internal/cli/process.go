//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long a process may take to end before it is killed.
const stopTime = 30 * time.Second

var errExited = errors.New("the process ended")

// process is a process that the demo runs. A nil process was never started.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	failed error
}

// start runs a program in a process group of its own, so that an interrupt
// from the terminal reaches only the demo, which then stops the program in order.
// The kernel kills the program when the demo is killed.
func start(dir, log string, env []string, program string, args ...string) (*process, error) {
	out, err := os.OpenFile(filepath.Join(dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	c := &process{
		name: filepath.Base(program) + " " + args[0], cmd: exec.Command(program, args...), exited: make(chan struct{}),
	}
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the signal when the thread that started the process
		// ends, not when the demo ends; so this thread must not end earlier.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.failed = c.cmd.Wait()
			close(c.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	return c, nil
}

// startAndWait starts a program and returns when it reports that it is ready, as
// services do to systemd. If the program runs but does not become ready, the
// process is returned together with the error.
func startAndWait(ctx context.Context, dir, log, program string, args ...string) (*process, error) {
	address := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for readiness: %w", err)
	}
	defer func() {
		_ = socket.Close()
		_ = os.Remove(address)
	}()
	c, err := start(dir, log, []string{"NOTIFY_SOCKET=" + address}, program, args...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.with(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 4096)
	for {
		n, err := socket.Read(buffer)
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		if err != nil {
			return c, fmt.Errorf("wait for readiness: %w", err)
		}
		if strings.Contains(string(buffer[:n]), "READY=1") {
			return c, nil
		}
	}
}

// with returns a context that also ends when the process ends.
func (c *process) with(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-c.exited:
			cancel(fmt.Errorf("%s: %w", c.name, errExited))
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (c *process) running() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// stop ends the process as systemd does. It may be called repeatedly.
func (c *process) stop() error {
	if !c.running() {
		return nil
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.exited:
	case <-time.After(stopTime):
		_ = c.cmd.Process.Kill()
		<-c.exited
		return fmt.Errorf("stop %s: it did not end within %s and was killed", c.name, stopTime)
	}
	if c.failed != nil {
		return fmt.Errorf("stop %s: %w", c.name, c.failed)
	}
	return nil
}
