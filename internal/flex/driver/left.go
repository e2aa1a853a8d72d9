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
	// leftPause is the pause between looks at what is being ended, and leftHangs
	// that at what hangs in the kernel.
	leftPause = 5 * time.Millisecond
	leftHangs = time.Second
)

// EndLeft ends what is left of calls of a driver that are written down in a
// directory: their host was killed, and nobody saw the end. What hangs in the
// kernel keeps what it works on from being worked on by another call.
func (c *Calls) EndLeft(ctx context.Context, driver, traces string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 2*killGrace)
	defer cancel()
	left, err := readTraces(traces)
	if err != nil {
		log.Warn("what is left of calls of a FlexVolume driver is not known", "dir", traces, "err", err)
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

// endAll ends what is left of calls that work on the same.
func (c *Calls) endAll(ctx context.Context, driver, key string, all []*trace, log *slog.Logger) {
	for _, t := range all {
		if t.Volume != "" {
			c.name(driver, t.Volume, t.Named)
		}
		log.Warn("what is left of a call of a FlexVolume driver is ended", "driver", driver, "call",
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
		log.Error("what is left of a call of a FlexVolume driver does not end; other calls about it wait", "driver", driver,
			"about", key, "err", err)
	}
}

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
