package driver

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// errNotStarted says that nothing was done.
var errNotStarted = errors.New("the driver cannot be started")

// process is one start of an executable.
type process struct {
	program *program
	// args are those after its path.
	args []string
	// cgroup is the directory of the cgroup to start in; empty for ours.
	cgroup string
	// trace is where it is written down, nil for nowhere.
	trace *trace
	limit time.Duration
	// overdue is called, once, when the process does not even end after it was
	// killed.
	overdue func()
}

// ending is how it ended.
type ending struct {
	// exit is the exit code, -1 when a signal ended it.
	exit           int
	stdout, stderr []byte
	// cut says that there was more output than is kept.
	cut bool
}

const (
	// killGrace is how long a process may take to end when it is killed.
	killGrace = 5 * time.Second
	// busyTries and busyPause are how often, and how far apart, an executable
	// that somebody writes to is tried to be started.
	busyTries = 50
	busyPause = 20 * time.Millisecond
	// firstInherited is the first file after those that are given.
	firstInherited = 3
)

// environment is all that a driver gets of ours: nothing (H6), but the name of
// the call where that is what its processes are found by.
func (p process) environment() []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LANG=C.UTF-8"}
	if p.trace != nil && p.trace.Cgroup == "" {
		env = append(env, p.trace.mark())
	}
	return env
}

// run starts the process and returns when it has ended, which is not later than
// its limit, if the kernel can end it. What it has started itself may live on.
// The error is errNotStarted, decide.ErrTimeLimit or ErrExchanged.
func (p process) run() (ending, error) {
	stdout, err := newOutput()
	if err != nil {
		return ending{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	defer stdout.close()
	stderr, err := newOutput()
	if err != nil {
		return ending{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	defer stderr.close()
	// The kernel kills the child when the thread that started it ends, so that
	// no call survives us and runs beside a new one; the thread must not end
	// before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started, pidfd, err := p.start(stdout.child, stderr.child)
	if err != nil {
		return ending{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	p.trace.leads(started.Pid)
	go stdout.read()
	go stderr.read()
	err = p.wait(started.Pid, pidfd)
	state, waitErr := started.Wait()
	stdout.finish()
	stderr.finish()
	if err == nil && waitErr != nil {
		err = fmt.Errorf("wait for the driver: %w", waitErr)
	}
	if err == nil {
		err = p.program.unchanged()
	}
	e := ending{stdout: stdout.kept.last(), stderr: stderr.kept.last(), exit: -1, cut: stdout.kept.cut || stderr.kept.cut}
	if state != nil {
		e.exit = state.ExitCode()
	}
	return e, err
}

// start starts the process in a new session, and in the cgroup if that is
// possible.
func (p process) start(stdout, stderr *os.File) (*os.Process, int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, 0, err
	}
	defer null.Close()
	// Files that whoever started us has left open are nothing to a driver (H6);
	// our own close by themselves. An older kernel can do nothing about them.
	_ = unix.CloseRange(firstInherited, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	pidfd := -1
	attr := &os.ProcAttr{
		Dir: "/", Env: p.environment(), Files: []*os.File{null, stdout, stderr},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	}
	if cgroup := p.in(); cgroup != "" {
		if fd, err := unix.Open(cgroup, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err == nil {
			defer unix.Close(fd)
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, fd
		}
	}
	if !attr.Sys.UseCgroupFD {
		if err := p.trace.withoutCgroup(); err != nil {
			return nil, 0, err
		}
		attr.Env = p.environment()
	}
	started, err := p.startTries(attr)
	if err != nil && attr.Sys.UseCgroupFD {
		// A cgroup can be gone or not be ours: a call is worth more.
		if again := p.trace.withoutCgroup(); again != nil {
			return nil, 0, again
		}
		attr.Sys.UseCgroupFD, attr.Env = false, p.environment()
		started, err = p.startTries(attr)
	}
	return started, pidfd, err
}

// in returns the cgroup to start in: the call's own, or the driver's.
func (p process) in() string {
	if p.trace != nil && p.trace.Cgroup != "" {
		return p.trace.Cgroup
	}
	return p.cgroup
}

// startTries starts an executable that somebody writes to when he has closed
// it.
func (p process) startTries(attr *os.ProcAttr) (started *os.Process, err error) {
	path := p.program.start()
	err = WhenClosed(busyTries, func() error {
		started, err = os.StartProcess(path, append([]string{p.program.path}, p.args...), attr)
		return err
	})
	return started, err
}

// WhenClosed calls start, which starts an executable, up to so many times, a
// moment apart, while somebody has that open to write: so has, for a moment, every
// process that another part of ours starts while it is being written. It returns
// the last error of start.
func WhenClosed(tries int, start func() error) error {
	pause := time.NewTicker(busyPause)
	defer pause.Stop()
	for try := 1; ; try++ {
		err := start()
		if !errors.Is(err, unix.ETXTBSY) || try == tries {
			return err
		}
		<-pause.C
	}
}

// wait waits until the process has ended. At its limit its group is killed, and
// so is what is left of that when something else has killed its leader: nobody
// leads it any more, and the next call must not begin beside it. The process is
// not reaped, so that its number is nobody else's.
func (p process) wait(pid, pidfd int) error {
	defer unix.Close(pidfd)
	inTime := ended(pidfd, p.limit)
	if inTime && !killed(pidfd) {
		return nil
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	last := time.Now().Add(killGrace)
	over := ended(pidfd, killGrace) && groupEnded(pid, time.Until(last))
	if !over {
		p.overdue()
		ended(pidfd, -1)
		groupEnded(pid, math.MaxInt64)
	}
	if inTime {
		return nil
	}
	return fmt.Errorf("%w (%s)", decide.ErrTimeLimit, p.limit)
}

// killed says whether a process that has ended was killed.
func killed(pidfd int) bool {
	var how unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, pidfd, &how, unix.WEXITED|unix.WNOWAIT, nil)
	const cldKilled, cldDumped = 2, 3
	return err == nil && (how.Code == cldKilled || how.Code == cldDumped)
}

// groupEnded waits until nothing of a process group lives, whose leader is not
// reaped.
func groupEnded(group int, limit time.Duration) bool {
	pause := time.NewTicker(leftPause)
	defer pause.Stop()
	for began := time.Now(); slices.ContainsFunc(processes(), func(p living) bool { return p.group == group }); <-pause.C {
		if time.Since(began) > limit {
			return false
		}
	}
	return true
}

// ended waits until the process has ended, or for a time unless that is
// negative.
func ended(pidfd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		left := -1
		if limit >= 0 {
			left = int(max(0, (time.Until(deadline)+time.Millisecond-1)/time.Millisecond))
		}
		n, err := unix.Poll(fds, left)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			// What cannot be asked is waited for by who reaps it.
			return true
		}
		if err == nil && limit >= 0 {
			return false
		}
	}
}
