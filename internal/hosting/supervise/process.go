package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errGone says that a process has ended, or that its pid is another one's by now.
var errGone = errors.New("the process has ended")

// process is a process that is held by a descriptor: its pid cannot come to mean another one.
type process struct {
	pid   int
	start uint64
	pidfd *os.File
}

// openProcess opens the process with a pid that has started at a time, or at any time if start is 0.
func openProcess(pid int, start uint64) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, errGone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	// Reads of a non-blocking descriptor wait without a thread.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	p := &process{pid: pid, pidfd: os.NewFile(uintptr(fd), "pidfd")}
	// The time is read after the open: if it is right, the descriptor is that process's.
	p.start, err = startTime(pid)
	if err == nil && start != 0 && p.start != start {
		err = errGone
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Fields of a process's stat in /proc, counted from 1.
const (
	statGroup     = 5
	statStartTime = 22
)

// stat returns a field after the name of the process with a pid.
func stat(pid, field int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", errGone
	}
	// The second field is a name of any characters, in parentheses.
	const afterName = 3
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) <= field-afterName {
		return "", fmt.Errorf("process %d: /proc does not have its field %d", pid, field)
	}
	return string(fields[field-afterName]), nil
}

// startTime returns when the process with a pid has started, in ticks since boot.
func startTime(pid int) (uint64, error) {
	ticks, err := stat(pid, statStartTime)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(ticks, 10, 64)
}

// groupMembers returns the processes of a process group.
func groupMembers(pgid int) []int {
	entries, _ := os.ReadDir("/proc") // where it is not mounted, no process is opened either
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if group, err := stat(pid, statGroup); err == nil && group == strconv.Itoa(pgid) {
			out = append(out, pid)
		}
	}
	return out
}

func (p *process) Close() error { return p.pidfd.Close() }

// signal sends a signal. It is not an error if the process has ended.
func (p *process) signal(s syscall.Signal) error {
	err := unix.PidfdSendSignal(int(p.pidfd.Fd()), s, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// ended says whether the process has ended, reaped or not.
func (p *process) ended() bool { return ready(p.pidfd.Fd(), unix.POLLIN, 0) }

// wait returns when the process has ended, or with the error of ctx.
func (p *process) wait(ctx context.Context) error {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = p.pidfd.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		err := conn.Read(func(fd uintptr) bool { return ready(fd, unix.POLLIN, 0) })
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		}
		// The deadline is that of an earlier wait.
		if err := p.pidfd.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}

// ready says whether one of the events has occurred, or occurs within milliseconds.
func ready(fd uintptr, events int16, milliseconds int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(fds, milliseconds)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// exit returns how the process has ended, after wait. It reaps a child of this process, so only the first call knows
// how that has ended.
func (p *process) exit() exit {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PIDFD, int(p.pidfd.Fd()), &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	if err != nil {
		return p.exitOfOther()
	}
	// It is a child and was not reaped, so the pid is still its own.
	var status unix.WaitStatus
	if _, err := unix.Wait4(p.pid, &status, unix.WNOHANG, nil); err != nil {
		return exit{}
	}
	return exit{known: true, status: syscall.WaitStatus(status)}
}

// exitOfOther queries the kernel for the exit status of a process that is not a child of this one, which Linux 6.15
// and later can report.
func (p *process) exitOfOther() exit {
	// It can as soon as the parent has reaped the process, at which point poll reports POLLHUP.
	const parentTakes = 200 // milliseconds
	if _, err := p.info(); err != nil {
		return exit{}
	}
	ready(p.pidfd.Fd(), 0, parentTakes)
	info, err := p.info()
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return exit{}
	}
	return exit{known: true, status: syscall.WaitStatus(info.Exit_code)}
}

// info queries the exit status by PIDFD_GET_INFO in its first version, which has all that is needed.
func (p *process) info() (unix.PidfdInfo, error) {
	info, err := p.askInfo()
	// The kernel looks for the status before it looks for the process. If the parent reaps the process between the two,
	// the kernel has found neither; a second query finds the status.
	if errors.Is(err, unix.ESRCH) {
		return p.askInfo()
	}
	return info, err
}

func (p *process) askInfo() (unix.PidfdInfo, error) {
	const getInfo = unix.PIDFD_GET_INFO&^(0x3fff<<16) | unix.PIDFD_INFO_SIZE_VER0<<16
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, p.pidfd.Fd(), getInfo, uintptr(unsafe.Pointer(&info)))
	if errno != 0 {
		return info, errno
	}
	return info, nil
}
