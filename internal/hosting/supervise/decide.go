package supervise

import (
	"fmt"
	"syscall"
	"time"

	"volplane.dev/volplane/internal/process/queue"
)

// found is what there is of a program when it shall run.
type found struct {
	// known: there is a record of this boot; same: it is of the same Program.
	known, same bool
	// alive: the main process that it names lives.
	alive bool
	// exit is how it has ended if it does not.
	exit exit
	// populated: processes live in the cgroup of the last start.
	populated bool
	// daemonised and settled are those of the record.
	daemonised, settled bool
}

// opening is what is done first.
type opening string

const (
	// begin starts the program; what an earlier main process has left stays.
	begin opening = "start"
	// adopt follows the main process.
	adopt opening = "adopt the main process"
	// adoptDaemon follows what the main process has left.
	adoptDaemon opening = "adopt the daemon"
	// replaceMain ends the main process, and starts the program.
	replaceMain opening = "end the main process, start"
	// replaceAll ends all processes of the last start, because it is unknown which one is the main one.
	replaceAll opening = "end all of the last start, start"
)

// open decides what is done with what there is.
func (f found) open() opening {
	switch {
	case !f.known && f.populated:
		return replaceAll
	case !f.known:
		return begin
	case f.alive && f.same:
		return adopt
	case f.alive:
		return replaceMain
	case !f.populated:
		return begin
	}
	daemon := f.daemonised || becameDaemon(f.exit, f.settled, f.populated)
	switch {
	case daemon && f.same:
		return adoptDaemon
	case daemon:
		return replaceAll
	}
	return begin
}

// exit is how a process has ended.
type exit struct {
	// known says that the kernel has reported the status.
	known  bool
	status syscall.WaitStatus
	// outOfMemory says that the kernel has killed a process of the same start because its cgroup had no memory left.
	outOfMemory bool
}

// String returns the exit in words.
func (e exit) String() string {
	switch {
	case !e.known:
		return "ended in an unknown way"
	case e.status.Signaled() && e.status.Signal() == syscall.SIGKILL && e.outOfMemory:
		return "killed by signal 9 (out of memory)"
	case e.status.Signaled():
		return fmt.Sprintf("killed by signal %d (%s)", e.status.Signal(), e.status.Signal())
	}
	return fmt.Sprintf("exit status %d", e.status.ExitStatus())
}

// becameDaemon says whether a main process that has ended continues in the processes that it left. One that has
// served for a while does not: then it has failed, or was asked to stop, and others such as the daemons of FUSE
// mounts remain.
func becameDaemon(e exit, settled, populated bool) bool {
	success := !e.known || e.status.Exited() && e.status.ExitStatus() == 0
	return success && populated && !settled
}

// pauseAfter returns how long to wait after an end or a failed start, and the number of failures in a row.
func pauseAfter(retry queue.Backoff, failures int, settled bool) (time.Duration, int) {
	if settled {
		failures = 0
	}
	return retry.Pause(failures), failures + 1
}

// nextStart returns the number of the next start's cgroup after those that there are.
func nextStart(starts []int) int {
	last := 0
	for _, n := range starts {
		last = max(last, n)
	}
	return last + 1
}
