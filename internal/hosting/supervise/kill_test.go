package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// supervisor is a supervising process that is killed before its step number args[0], after it has printed the
// step's name: arguments are the directory of the test, the name, the generation and what it does.
func supervisor(args []string) int {
	last, dir, name, generation, deed := args[0], args[1], args[2], args[3], args[4]
	fatal := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	at, err := strconv.Atoi(last)
	if err != nil {
		return fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		return fatal(err)
	}
	o := options(&testing.T{}, dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	steps := 0
	o.step = func(step string) {
		if steps == at {
			fmt.Println(step)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		steps++
	}
	s, err := Open(ctx, o)
	if err != nil {
		return fatal(err)
	}
	if deed == "stop" {
		err = s.Stop(ctx, name)
	} else {
		p := Program{Name: name, Argv: []string{self, deed, dir}, Generation: generation}
		err = s.Run(ctx, p, func(r Record) {
			if r.State == Running && (r.PID != 0) == (deed == "program") {
				cancel() // it ends here
			}
		})
	}
	if err != nil {
		return fatal(err)
	}
	return 0
}

// superviseUntil has a process do something until its step number n, before which it is killed. It returns the name of
// that step, or "" if there are fewer.
func (w *supervised) superviseUntil(n int, generation, deed string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), self(w), "supervisor", strconv.Itoa(n), w.dir, w.name(), generation, deed)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil && !killed(cmd) {
		w.Fatalf("the supervisor ended with %v: %s", err, errors.String())
	}
	return strings.TrimSpace(string(out))
}

func killed(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// TestKilledAtEachStep: whatever step of a supervisor is its last, the next one ends with one program, or with none if
// it is asked to stop it.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	program, daemon := (*supervised).program, (*supervised).daemon
	for name, c := range map[string]struct {
		what func(*supervised) Program
		// before is what was done earlier, generation what the killed supervisor wants, deed what it does.
		before           func(*supervised)
		generation, deed string
		steps            []string
	}{
		"first start": {what: program, deed: "program", steps: []string{
			"write first record", "make cgroup", "start gate", "enter cgroup", "write record", "say the word",
			"hear of failure",
		}},
		"start after a crash": {what: program, deed: "program", before: func(w *supervised) {
			w.startAndLeave(w.program())
			crash(w, w.record().PID)
		}, steps: []string{
			"write first record", "make cgroup", "start gate", "enter cgroup", "write record", "say the word",
			"hear of failure",
		}},
		"replace": {what: program, generation: "2", deed: "program", before: func(w *supervised) {
			w.startAndLeave(w.program())
		}, steps: []string{
			"write that it ends", "ask to end", "write first record", "make cgroup", "start gate", "enter cgroup",
			"write record", "say the word", "hear of failure",
		}},
		"become a daemon": {what: daemon, deed: "daemon", steps: []string{
			"write first record", "make cgroup", "start gate", "enter cgroup", "write record", "say the word",
			"hear of failure", "main process has ended",
		}},
		"stop": {what: program, deed: "stop", before: func(w *supervised) {
			w.startAndLeave(w.program())
		}, steps: []string{
			"write that it ends", "ask to end", "kill the rest", "remove cgroup", "remove files", "remove record",
		}},
		"stop a daemon": {what: daemon, deed: "stop", before: func(w *supervised) {
			w.startAndLeave(w.daemon())
		}, steps: []string{"ask to end", "kill the rest", "remove cgroup", "remove files", "remove record"}},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []string
			for n := 0; ; n++ {
				step := killedAt(t, n, c.before, c.what, c.generation, c.deed)
				if step == "" {
					break
				}
				steps = append(steps, step)
			}
			if !slices.Equal(steps, c.steps) {
				t.Errorf("killed before the steps %q, want %q", steps, c.steps)
			}
		})
	}
}

// killedAt plays a case with a supervisor that is killed before its step n, and returns that step.
func killedAt(
	t *testing.T, n int, before func(*supervised), what func(*supervised) Program, generation, deed string,
) string {
	step := ""
	t.Run(strconv.Itoa(n), func(t *testing.T) {
		w := newSupervised(t)
		if before != nil {
			before(w)
		}
		if err := w.s.Close(); err != nil {
			t.Fatal(err)
		}
		step = w.superviseUntil(n, generation, deed)
		w.open(w.s.Options)
		if deed == "stop" {
			return // the end of the test stops it, too
		}
		w.records = nil
		p := what(w)
		p.Generation = generation
		w.run(p)
		w.until("the program runs", func(r Record) bool {
			return r.State == Running && r.Daemonised == (deed == "daemon")
		})
		eventually(t, "one program lives", func() bool { return len(w.programs()) == 1 })
		if said := w.said(); strings.Contains(strings.Join(said, " "), "met another") {
			t.Errorf("killed before %q: programs have said %q", step, said)
		}
		if r := w.record(); r.PID != 0 && !slices.Equal(w.programs(), []int{r.PID}) {
			t.Errorf("killed before %q: the record names %d, there are %v", step, r.PID, w.programs())
		}
	})
	return step
}

// startAndLeave starts a program and leaves it without a supervisor.
func (w *supervised) startAndLeave(p Program) {
	w.Helper()
	w.run(p)
	w.hears(1)
	w.until("it runs", func(r Record) bool { return r.State == Running && (r.PID != 0) != (p.Argv[1] == "daemon") })
	w.halt()
}

// crash kills a process, and waits until it is gone.
func crash(w *supervised, pid int) {
	w.Helper()
	p, err := openProcess(pid, 0)
	if err != nil {
		w.Fatal(err)
	}
	defer p.Close()
	if err := p.signal(syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	if err := p.wait(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// programs returns the processes that are the test's program.
func (w *supervised) programs() []int {
	var pids []int
	for _, line := range w.processesOfTest() {
		if strings.HasSuffix(strings.TrimSpace(line), "program "+w.dir) {
			pid, _ := strconv.Atoi(strings.Split(line, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}
