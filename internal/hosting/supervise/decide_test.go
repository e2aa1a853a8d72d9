package supervise

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"volplane.dev/volplane/internal/process/queue"
)

func TestOpening(t *testing.T) {
	t.Parallel()
	success := exit{known: true}
	crashed := exit{known: true, status: syscall.WaitStatus(syscall.SIGSEGV)}
	for _, c := range []struct {
		name string
		f    found
		want opening
	}{
		{"nothing is there", found{}, begin},
		{"processes without a record", found{populated: true}, replaceAll},
		{"it lives", found{known: true, same: true, alive: true, populated: true}, adopt},
		{"it lives without a cgroup", found{known: true, same: true, alive: true}, adopt},
		{"another one lives", found{known: true, alive: true, populated: true}, replaceMain},
		{"it has ended", found{known: true, same: true}, begin},
		{"another one has ended", found{known: true}, begin},
		{"a daemon lives", found{known: true, same: true, daemonised: true, populated: true}, adoptDaemon},
		{"another daemon lives", found{known: true, daemonised: true, populated: true}, replaceAll},
		{"a daemon has ended", found{known: true, same: true, daemonised: true}, begin},
		{"it ended soon and left processes", found{known: true, same: true, populated: true}, adoptDaemon},
		{"it ended with success", found{known: true, same: true, populated: true, exit: success}, adoptDaemon},
		{"it crashed soon and left processes", found{known: true, same: true, populated: true, exit: crashed}, begin},
		{"it had settled and left processes", found{known: true, same: true, populated: true, settled: true}, begin},
		{"another one had settled and left some", found{known: true, populated: true, settled: true}, begin},
	} {
		if got := c.f.open(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestExitInWords(t *testing.T) {
	t.Parallel()
	killed, trap := syscall.WaitStatus(syscall.SIGKILL), syscall.WaitStatus(syscall.SIGSEGV|0x80)
	for want, e := range map[string]exit{
		"ended in an unknown way":                  {},
		"exit status 0":                            {known: true},
		"exit status 2":                            {known: true, status: 2 << 8},
		"killed by signal 9 (killed)":              {known: true, status: killed},
		"killed by signal 9 (out of memory)":       {known: true, status: killed, outOfMemory: true},
		"killed by signal 11 (segmentation fault)": {known: true, status: trap, outOfMemory: true},
	} {
		if got := e.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestBecameDaemon(t *testing.T) {
	t.Parallel()
	success, failed := exit{known: true}, exit{known: true, status: 1 << 8}
	for _, c := range []struct {
		exit               exit
		settled, populated bool
		want               bool
	}{
		{success, false, true, true},
		{success, false, false, false},
		{success, true, true, false},
		{failed, false, true, false},
		{exit{}, false, true, true},
		{exit{}, true, true, false},
	} {
		if got := becameDaemon(c.exit, c.settled, c.populated); got != c.want {
			t.Errorf("%s, settled %v, populated %v: %v", c.exit, c.settled, c.populated, got)
		}
	}
}

func TestPauseAfter(t *testing.T) {
	t.Parallel()
	retry := queue.Backoff{Min: time.Second, Max: time.Minute}
	for _, c := range []struct {
		failures int
		settled  bool
		pause    time.Duration
		next     int
	}{
		{0, false, time.Second, 1},
		{3, false, 8 * time.Second, 4},
		{1000, false, time.Minute, 1001},
		{1000, true, time.Second, 1},
	} {
		if pause, next := pauseAfter(retry, c.failures, c.settled); pause != c.pause || next != c.next {
			t.Errorf("after %d failures, settled %v: %s, %d", c.failures, c.settled, pause, next)
		}
	}
}

func TestNextStart(t *testing.T) {
	t.Parallel()
	for want, starts := range map[int][]int{1: nil, 2: {1}, 8: {7, 3}} {
		if got := nextStart(starts); got != want {
			t.Errorf("after %v: %d, want %d", starts, got, want)
		}
	}
}

// TestOutOfMemory: the hierarchy of this host may have no memory controller, so a file stands for it.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n": true,
		"low 0\noom 1\noom_kill 0\n":                                  false,
		"oom_kill many\n":                                             false,
		"":                                                            false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := outOfMemory(dir); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if outOfMemory("") || outOfMemory(t.TempDir()) {
		t.Error("without the file")
	}
}
