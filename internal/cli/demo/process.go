//go:build linux

package demo

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

// start runs a program, whose output goes to the file log, and returns when the program reports that it is ready, as
// services do to systemd. If it runs but does not become ready, the process is returned together with the error.
func start(ctx context.Context, dir, log, program string, args ...string) (*process, error) {
	address := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listen for readiness: %w", err)
	}
	defer func() {
		_ = socket.Close()
		_ = os.Remove(address)
	}()
	out, err := os.OpenFile(filepath.Join(dir, log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	c := &process{
		name: filepath.Base(program) + " " + args[0], cmd: exec.Command(program, args...), exited: make(chan struct{}),
	}
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Env = out, out, append(os.Environ(), "NOTIFY_SOCKET="+address)
	if err := c.begin(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	return c, c.await(ctx, socket)
}

// begin starts the process in a process group of its own, so that an interrupt
// from the terminal reaches only the demo, which then stops the program in order.
// The kernel kills the program when the demo is killed.
func (c *process) begin() error {
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
	return <-started
}

// await waits until the process reports that it is ready, or ends.
func (c *process) await(ctx context.Context, socket *net.UnixConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-ctx.Done():
		case <-c.exited:
			cancel(fmt.Errorf("%s: %w", c.name, errExited))
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, 4096)
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("wait for readiness: %w", err)
		case strings.Contains(string(buffer[:n]), "READY=1"):
			return nil
		}
	}
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
