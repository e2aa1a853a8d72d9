package driver

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// errNotStarted says that the driver was not started, so it has done nothing.
var errNotStarted = errors.New("the driver cannot be started")

// process is one start of an executable.
type process struct {
	program *program
	// args are the arguments after its path.
	args []string
	// cgroup is the directory of the driver's cgroup; empty if there is none.
	cgroup string
	// trace is the trace of the call; nil if there is none.
	trace *trace
	limit time.Duration
	// overdue is called once if the process does not end even after it was killed.
	overdue func()
}

// exit is the result of a process.
type exit struct {
	// exit is the exit code; -1 if a signal ended the process.
	exit           int
	stdout, stderr []byte
	// cut says that only the end of the output was kept.
	cut bool
}

const (
	// killGrace is how long a killed process may take to end.
	killGrace = 5 * time.Second
	// busyTries is how often, and busyPause at which interval, the start of an executable is
	// retried while a process has it open for writing.
	busyTries = 50
	busyPause = 20 * time.Millisecond
	// firstInheritedFD is the first file descriptor after those that a driver gets.
	firstInheritedFD = 3
)

// SearchPath is the PATH of drivers.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environment returns a driver's environment, which inherits nothing from this process (H6).
func Environment() []string { return []string{"PATH=" + SearchPath, "HOME=/", "LANG=C.UTF-8"} }

// environment adds the name of the call if the call has no cgroup by which its processes could be found.
func (p process) environment() []string {
	env := Environment()
	if p.trace != nil && p.trace.Cgroup == "" {
		env = append(env, p.trace.mark())
	}
	return env
}

// run starts the process and waits until it has ended. At its time limit the process is killed. Processes that it has
// started may live on. The error is errNotStarted, decide.ErrTimeLimit or ErrExchanged.
func (p process) run() (exit, error) {
	stdout, err := newOutput()
	if err != nil {
		return exit{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	defer stdout.close()
	stderr, err := newOutput()
	if err != nil {
		return exit{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	defer stderr.close()
	// The kernel kills the child when the thread that started it ends (PDEATHSIG), so that no call
	// outlives this process and runs beside a new one. So this thread must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started, pidfd, err := p.start(stdout.child, stderr.child)
	if err != nil {
		return exit{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
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
	e := exit{stdout: stdout.kept.last(), stderr: stderr.kept.last(), exit: -1, cut: stdout.kept.cut || stderr.kept.cut}
	if state != nil {
		e.exit = state.ExitCode()
	}
	return e, err
}

// start starts the process in a new session, and in the cgroup if possible. The calling thread must be locked.
func (p process) start(stdout, stderr *os.File) (*os.Process, int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, 0, err
	}
	defer null.Close()
	// Files that the parent of this process has left open are not passed to the driver (H6); Go
	// closes its own. Older kernels cannot do that.
	_ = unix.CloseRange(firstInheritedFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	pidfd := -1
	attr := &os.ProcAttr{
		Dir: "/", Env: p.environment(), Files: []*os.File{null, stdout, stderr},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	}
	if cgroup := p.cgroupDir(); cgroup != "" {
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
	started, err := p.startRecorded(attr)
	if err != nil && attr.Sys.UseCgroupFD {
		// The cgroup may have been removed or be forbidden: the call is made without it.
		if again := p.trace.withoutCgroup(); again != nil {
			return nil, 0, again
		}
		attr.Sys.UseCgroupFD, attr.Env = false, p.environment()
		started, err = p.startRecorded(attr)
	}
	return started, pidfd, err
}

// startRecorded starts the process. If the call has no cgroup of its own, its session is recorded before the process
// does anything, so that the next host process finds what it has started: the process is traced, and stops before its
// first instruction. If this host process is killed in between, the kernel kills the stopped one as well. Where
// processes may not be traced, the session is recorded while the process runs.
func (p process) startRecorded(attr *os.ProcAttr) (*os.Process, error) {
	attr.Sys.Ptrace = p.trace != nil && p.trace.Cgroup == ""
	started, err := p.startRetried(attr)
	if errors.Is(err, unix.EPERM) && attr.Sys.Ptrace {
		attr.Sys.Ptrace = false
		started, err = p.startRetried(attr)
	}
	if err != nil {
		return nil, err
	}
	if attr.Sys.Ptrace {
		awaitStop(started.Pid)
		// This fails only if the process was killed in between.
		defer func() { _ = unix.PtraceDetach(started.Pid) }()
	}
	p.trace.setLeader(started.Pid)
	return started, nil
}

// awaitStop waits until a traced process has stopped or ended. It is not reaped.
func awaitStop(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// cgroupDir returns the cgroup to start in: the call's own, or the driver's.
func (p process) cgroupDir() string {
	if p.trace != nil && p.trace.Cgroup != "" {
		return p.trace.Cgroup
	}
	return p.cgroup
}

// startRetried starts an executable, and retries while a process has it open for writing.
func (p process) startRetried(attr *os.ProcAttr) (started *os.Process, err error) {
	path := p.program.start()
	err = WhenClosed(busyTries, func() error {
		started, err = os.StartProcess(path, append([]string{p.program.path}, p.args...), attr)
		return err
	})
	return started, err
}

// WhenClosed calls start, which starts an executable, up to tries times while it fails because a
// process has the executable open for writing. That happens for a moment with each process that
// this one starts while it writes the file. It returns the last error of start.
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

// wait waits until the process has ended. At its limit its process group is killed. If something
// else has killed the leader, the rest of the group is killed, too, because the next call must not
// run beside it. The process is not reaped yet, so that its pid is not reused.
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

// killed says whether a signal ended the process.
func killed(pidfd int) bool {
	var how unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, pidfd, &how, unix.WEXITED|unix.WNOWAIT, nil)
	const cldKilled, cldDumped = 2, 3
	return err == nil && (how.Code == cldKilled || how.Code == cldDumped)
}

// groupEnded waits until no process of a group lives. The group's leader has not been reaped.
func groupEnded(group int, limit time.Duration) bool {
	pause := time.NewTicker(pollInterval)
	defer pause.Stop()
	isMember := func(p osProcess) bool { return p.group == group }
	for began := time.Now(); slices.ContainsFunc(processes(), isMember); <-pause.C {
		if time.Since(began) > limit {
			return false
		}
	}
	return true
}

// ended waits until the process has ended, at most for limit if that is not negative.
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
			// The pidfd cannot be polled; the caller waits when it reaps the process.
			return true
		}
		if err == nil && limit >= 0 {
			return false
		}
	}
}

// ErrNoCgroup says that the host has no cgroup v2 in which this process can create cgroups.
var ErrNoCgroup = errors.New("no cgroup v2 to start drivers in")

// cgroupParent is the name of the parent of all drivers' cgroups.
const cgroupParent = "volplane-flex"

// Cgroup creates the cgroup of a driver's processes, outside of the cgroup of this process, and returns its directory
// for Options. Processes in it survive the end of this one. It may be repeated. Its errors wrap ErrNoCgroup.
func Cgroup(name decide.Name) (string, error) {
	root, err := mount.CgroupRoot()
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrNoCgroup, err)
	case root == "":
		return "", ErrNoCgroup
	}
	dir := filepath.Join(root, cgroupParent, name.Dir())
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as all directories there
		return "", fmt.Errorf("%w: %w", ErrNoCgroup, err)
	}
	return dir, nil
}
