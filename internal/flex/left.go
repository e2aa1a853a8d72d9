package flex

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// leftPause is the pause between looks at what is being ended, and leftHangs
	// that at what hangs in the kernel.
	leftPause = 5 * time.Millisecond
	leftHangs = time.Second
)

// finish ends what is left of a call and returns when nothing is. It calls
// overdue, once, when that does not come.
func (t *trace) finish(overdue func()) {
	last := time.Now().Add(killGrace)
	pause := time.NewTicker(leftPause)
	defer pause.Stop()
	for t.kill() {
		<-pause.C
		if !last.IsZero() && time.Now().After(last) {
			last = time.Time{}
			overdue()
			pause.Reset(leftHangs)
		}
	}
	t.strike()
}

// kill kills what is left of a call, and says whether there was something.
func (t *trace) kill() bool {
	if t.Cgroup != "" {
		return killCgroup(t.Cgroup)
	}
	return killAll(processes(), t.has)
}

// has says whether a process is of a call without a cgroup: it is in its session,
// or has inherited its mark. The number of a session is nobody else's while
// somebody is in it; when it is that of a process that did not start with the
// call, nobody was.
func (t *trace) has(p living) bool {
	if t.Session != 0 && p.session == t.Session && p.began >= t.Began {
		if leader, lives := processOf(t.Session); !lives || leader.began == t.Began {
			return true
		}
	}
	return p.marked(t.mark())
}

// killAll kills those of processes that are meant, and says whether there was
// one.
func killAll(all []living, meant func(living) bool) bool {
	left := false
	for _, p := range all {
		if meant(p) {
			left = true
			p.kill(meant)
		}
	}
	return left
}

// killCgroup kills what lives in a cgroup, or below, and says whether something
// does.
func killCgroup(cgroup string) bool {
	if !populated(cgroup) {
		return false
	}
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0); err != nil {
		// Before Linux 5.14 one is killed after the other.
		killAll(processes(), func(p living) bool { return p.in(cgroup) })
	}
	return true
}

// populated says whether a process lives in a cgroup or below.
func populated(cgroup string) bool {
	events, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && bytes.Contains(events, []byte("populated 1"))
}

// living is a process that has not ended, as it was seen.
type living struct {
	pid, group, session int
	// began is when it started, in clock ticks of the boot: with its number that
	// tells it from all others.
	began uint64
}

// processes returns all that have not ended, but this one.
func processes() []living {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []living
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, ok := processOf(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// Fields of /proc/PID/stat after the name, which may hold anything.
const (
	statState, statGroup, statSession, statBegan = 0, 2, 3, 19
)

// processOf looks at the process of a number; false when none lives.
func processOf(pid int) (living, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return living{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= statBegan || fields[statState] == "Z" || fields[statState] == "X" {
		return living{}, false
	}
	p := living{pid: pid}
	var errs [3]error
	p.group, errs[0] = strconv.Atoi(fields[statGroup])
	p.session, errs[1] = strconv.Atoi(fields[statSession])
	p.began, errs[2] = strconv.ParseUint(fields[statBegan], 10, 64)
	return p, errs == [3]error{}
}

// in says whether it is in a cgroup, or below.
func (p living) in(cgroup string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	if err != nil {
		return false
	}
	// The name of a call is nobody else's.
	_, path, _ := strings.Cut("\n"+string(text), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	return slices.Contains(strings.Split(path, "/"), filepath.Base(cgroup))
}

// marked says whether it has inherited a variable.
func (p living) marked(mark string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), mark)
}

// kill kills it, if its number still is its own and it is what is meant.
func (p living) kill(meant func(living) bool) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, lives := processOf(p.pid); lives && now.began == p.began && meant(now) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
