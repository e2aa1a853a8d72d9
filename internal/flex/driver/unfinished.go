package driver

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pollInterval is how often processes that are being killed are checked, and hungPollInterval
	// how often if they hang in the kernel.
	pollInterval     = 5 * time.Millisecond
	hungPollInterval = time.Second
)

// EndLeft ends the processes of calls that have a trace file in a directory: their host process was
// killed before they ended. If they hang in the kernel, other calls for the same object wait for
// them.
func (c *Calls) EndLeft(ctx context.Context, driver, traces string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 2*killGrace)
	defer cancel()
	left, err := readTraces(traces)
	if err != nil {
		log.Warn("traces of a FlexVolume driver's unfinished calls cannot be read", "dir", traces, "err", err)
	}
	keys := map[string][]*trace{}
	for _, t := range left {
		keys[t.Key] = append(keys[t.Key], t)
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for key, all := range keys {
		wait.Go(func() { c.endAll(ctx, driver, key, all, log) })
	}
}

// endAll ends the processes of calls for one object.
func (c *Calls) endAll(ctx context.Context, driver, key string, all []*trace, log *slog.Logger) {
	for _, t := range all {
		if t.Volume != "" {
			c.setName(driver, t.Volume, t.Named)
		}
		log.Warn("ending the processes of a FlexVolume driver's unfinished call", "driver", driver, "call",
			string(t.Op), "about", key)
	}
	end := func(_ context.Context, overdue func()) (any, error) {
		overdue = sync.OnceFunc(overdue)
		for _, t := range all {
			t.finish(overdue)
		}
		return nil, nil
	}
	if _, err := c.join(ctx, task{key: key, what: "end what is left", do: end}); err != nil {
		log.Error("the processes of a FlexVolume driver's unfinished call do not end; other calls for the same object wait",
			"driver", driver, "about", key, "err", err)
	}
}

// finish kills the processes of a call and returns when they have ended. It calls overdue once if
// that takes too long.
func (t *trace) finish(overdue func()) {
	last := time.Now().Add(killGrace)
	pause := time.NewTicker(pollInterval)
	defer pause.Stop()
	for t.kill() {
		<-pause.C
		if !last.IsZero() && time.Now().After(last) {
			last = time.Time{}
			overdue()
			pause.Reset(hungPollInterval)
		}
	}
	t.close()
}

// kill kills the processes of a call, and says whether there were any.
func (t *trace) kill() bool {
	if t.Cgroup != "" {
		return killCgroup(t.Cgroup)
	}
	return killAll(processes(), t.owns)
}

// owns says whether a process belongs to a call without a cgroup: it is in the call's session, or
// has inherited its mark. While a process is in a session, the kernel does not reuse the session's
// number; if the number's process started at another time than the call's leader, the session had
// ended.
func (t *trace) owns(p osProcess) bool {
	if t.Session != 0 && p.session == t.Session && p.started >= t.Started {
		if leader, lives := processOf(t.Session); !lives || leader.started == t.Started {
			return true
		}
	}
	return p.marked(t.mark())
}

// killAll kills the processes that match, and says whether there were any.
func killAll(all []osProcess, match func(osProcess) bool) bool {
	found := false
	for _, p := range all {
		if match(p) {
			found = true
			p.kill(match)
		}
	}
	return found
}

// killCgroup kills the processes in a cgroup and below it, and says whether there are any.
func killCgroup(cgroup string) bool {
	if !populated(cgroup) {
		return false
	}
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0); err != nil {
		// Before Linux 5.14 there is no cgroup.kill.
		killAll(processes(), func(p osProcess) bool { return p.inCgroup(cgroup) })
	}
	return true
}

// populated says whether a cgroup, or one below it, has a process.
func populated(cgroup string) bool {
	events, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && bytes.Contains(events, []byte("populated 1"))
}

// osProcess is a running process of the host.
type osProcess struct {
	pid, group, session int
	// started is when the process started, in clock ticks since boot. Together with the pid, it
	// identifies the process.
	started uint64
}

// processes returns all running processes but this one.
func processes() []osProcess {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []osProcess
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

// Indexes of fields in /proc/PID/stat, counted after the name, which may contain anything.
const (
	statState, statGroup, statSession, statBegan = 0, 2, 3, 19
)

// processOf returns the process with a pid; false if none runs.
func processOf(pid int) (osProcess, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return osProcess{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= statBegan || fields[statState] == "Z" || fields[statState] == "X" {
		return osProcess{}, false
	}
	p := osProcess{pid: pid}
	var errs [3]error
	p.group, errs[0] = strconv.Atoi(fields[statGroup])
	p.session, errs[1] = strconv.Atoi(fields[statSession])
	p.started, errs[2] = strconv.ParseUint(fields[statBegan], 10, 64)
	return p, errs == [3]error{}
}

// inCgroup says whether the process is in a cgroup or below it.
func (p osProcess) inCgroup(cgroup string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	if err != nil {
		return false
	}
	// The names of calls are unique.
	_, path, _ := strings.Cut("\n"+string(text), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	return slices.Contains(strings.Split(path, "/"), filepath.Base(cgroup))
}

// marked says whether the process has inherited the call's variable.
func (p osProcess) marked(mark string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && slices.Contains(strings.Split(string(env), "\x00"), mark)
}

// kill kills the process, if its pid was not reused and match still holds for it.
func (p osProcess) kill(match func(osProcess) bool) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, lives := processOf(p.pid); lives && now.started == p.started && match(now) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
