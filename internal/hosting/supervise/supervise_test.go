package supervise

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/process/queue"
)

func TestProgramOutlivesItsSupervisor(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.run(w.program())
	first := w.until("it runs", runs)
	w.hears(1)
	w.halt()
	if !lives(first.PID) {
		t.Fatal("the program has ended with its supervisor")
	}
	if sid, err := unix.Getsid(first.PID); sid != first.PID || err != nil {
		t.Errorf("its session is %d, %v", sid, err)
	}
	// The next supervisor may be another process.
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	w.open(w.s.Options)
	w.records = nil
	w.run(w.program())
	again := w.until("adopted", runs)
	if again != first {
		t.Errorf("the record was %+v, is %+v", first, again)
	}
	if said := w.said(); len(said) != 1 {
		t.Errorf("programs have said %q", said)
	}
	// What was adopted is followed as if it had been started here.
	crash(w, first.PID)
	w.hears(2)
	if r := w.until("started again", func(r Record) bool { return runs(r) && r.PID != first.PID }); r.Restarts != 1 {
		t.Errorf("after a crash of an adopted program: %+v", r)
	}
}

func TestEqualProgramsDiffer(t *testing.T) {
	t.Parallel()
	base := Program{Name: "n", Argv: []string{"/bin/x", "a"}, Env: []string{"A=1", "B=2"}}
	for name, c := range map[string]struct {
		change func(*Program)
		same   bool
	}{
		"nothing":                    {func(*Program) {}, true},
		"the order of environment":   {func(p *Program) { p.Env = []string{"B=2", "A=1"} }, true},
		"the default directory":      {func(p *Program) { p.Dir = "/" }, true},
		"another directory":          {func(p *Program) { p.Dir = "/tmp" }, false},
		"an argument":                {func(p *Program) { p.Argv = []string{"/bin/x", "b"} }, false},
		"where an argument ends":     {func(p *Program) { p.Argv = []string{"/bin/x a"} }, false},
		"a value":                    {func(p *Program) { p.Env = []string{"A=1", "B=3"} }, false},
		"an argument in environment": {func(p *Program) { p.Argv, p.Env = p.Argv[:1], append(p.Env, "a") }, false},
		"the generation":             {func(p *Program) { p.Generation = "1" }, false},
		"a directory that it has":    {func(p *Program) { p.Handed = "/tmp" }, false},
	} {
		p := base
		p.Argv, p.Env = slices.Clone(p.Argv), slices.Clone(p.Env)
		c.change(&p)
		if same := p.hash() == base.hash(); same != c.same {
			t.Errorf("with another %s the hashes are equal: %v", name, same)
		}
	}
}

func TestChangedProgramIsReplaced(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	old := w.record()
	p := w.program()
	p.Env = []string{"CHANGED=1"}
	w.run(p)
	w.hears(2)
	now := w.until("it runs", func(r Record) bool { return runs(r) && r.PID != old.PID })
	if lives(old.PID) || now.Restarts != 0 || now.Hash == old.Hash {
		t.Errorf("the old one lives: %v; record %+v", lives(old.PID), now)
	}
	if said := w.said(); strings.HasPrefix(said[1], "met") {
		t.Errorf("programs have said %q", said)
	}
}

// TestStubbornProgram: a program that does not end when it is asked to stop is killed.
func TestStubbornProgram(t *testing.T) {
	t.Parallel()
	w := newSupervised(t, func(o *Options) { o.Grace = 50 * time.Millisecond })
	p := w.script(`trap "" TERM; echo $$ >pid; while :; do sleep 1000; done`)
	w.run(p)
	pid := w.pidFrom("pid")
	w.halt()
	p.Generation = "2"
	w.run(p)
	w.until("replaced", func(r Record) bool { return runs(r) && r.PID != pid })
	if lives(pid) {
		t.Error("the old one lives")
	}
}

func TestBackOff(t *testing.T) {
	t.Parallel()
	const starts = 5
	retry := queue.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}
	w := newSupervised(t, func(o *Options) { o.Retry = retry })
	w.run(w.script("date +%s%N >>said; echo 'cannot serve: no luck' >&2; exit 3"))
	said := w.hears(starts)
	r := w.until("backs off", func(r Record) bool { return r.State == BackingOff && r.Restarts >= starts })
	if r.LastExit != "exit status 3" || r.LastLine != "cannot serve: no luck" || r.PID != 0 || r.NextAt.Before(r.Since) {
		t.Errorf("%+v", r)
	}
	var before time.Duration
	for i, least := range []time.Duration{0, 50, 100, 200, 200} {
		at, err := time.ParseDuration(said[i] + "ns")
		if err != nil {
			t.Fatal(err)
		}
		if pause := at - before; pause < least*time.Millisecond {
			t.Errorf("pause %d was %s, want %s at least", i, pause, least*time.Millisecond)
		}
		before = at
	}
}

// TestPausesStartAnew when a program has run for a while.
func TestPausesStartAnew(t *testing.T) {
	t.Parallel()
	w := newSupervised(t, func(o *Options) {
		o.Retry, o.settled = queue.Backoff{Min: 100 * time.Millisecond, Max: time.Hour}, 20*time.Millisecond
	})
	w.run(w.script("sleep 0.05; exit 1"))
	w.until("it was started often", func(r Record) bool { return r.Restarts > 8 })
	if r := w.record(); r.State == BackingOff && r.NextAt.Sub(r.Since) > time.Second {
		t.Errorf("%+v", r)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	if r, err := Read(w.s.Dir, w.name()); err != nil || r != w.record() {
		t.Errorf("read %+v, %v, told was %+v", r, err, w.record())
	}
	if names, err := Names(w.s.Dir); err != nil || !slices.Equal(names, []string{w.name()}) {
		t.Errorf("names %v, %v", names, err)
	}
	if names, err := Names(filepath.Join(w.dir, "none")); err != nil || len(names) != 0 {
		t.Errorf("names in no directory: %v, %v", names, err)
	}
	if _, err := Read(w.s.Dir, "../state/"+w.name()); !errors.Is(err, ErrInvalid) {
		t.Errorf("read of a path: %v", err)
	}
}

func TestLives(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	main := w.record()
	earlier, other, idle := main, main, main
	earlier.Boot, idle.State = "earlier", BackingOff
	other.StartTime--
	if !main.Lives() || earlier.Lives() || other.Lives() || idle.Lives() {
		t.Errorf("it lives: %v, in another boot: %v, with another time: %v, while it is not running: %v",
			main.Lives(), earlier.Lives(), other.Lives(), idle.Lives())
	}
	crash(w, main.PID)
	if main.Lives() {
		t.Error("it lives although it was killed")
	}
	w.run(w.daemon())
	daemon := w.until("it is a daemon", func(r Record) bool { return r.Daemonised })
	w.halt()
	if !daemon.Lives() {
		t.Error("what a daemon has left does not live")
	}
	crash(w, w.programs()[0])
	eventually(t, "the daemon does not live", func() bool { return !daemon.Lives() })
}

// TestRecordOfAForeignCgroup: a cgroup that is not the program's is not touched, whatever the record says.
func TestRecordOfAForeignCgroup(t *testing.T) {
	t.Parallel()
	victim := testCgroup(t)
	w := newSupervised(t)
	for _, daemonised := range []bool{true, false} {
		r := Record{
			Format: recordFormat, Name: w.name(), Hash: "another", State: Running, Boot: w.s.boot, Cgroup: victim,
			Daemonised: daemonised,
		}
		w.write(r)
		w.records = nil
		w.run(w.program())
		w.until("it runs", runs)
		w.halt()
		if err := w.s.Stop(t.Context(), w.name()); err != nil || len(processesOf(victim)) != 2 {
			t.Errorf("Stop: %v, the others are %v", err, processesOf(victim))
		}
	}
}

// TestSameNames: supervisors of two directories may have programs of the same name.
func TestSameNames(t *testing.T) {
	t.Parallel()
	one, other := newSupervised(t), newSupervised(t)
	one.startAndLeave(one.program())
	other.startAndLeave(other.program())
	if err := other.s.Stop(t.Context(), other.name()); err != nil || !lives(one.record().PID) {
		t.Errorf("Stop: %v, the other program lives: %v", err, lives(one.record().PID))
	}
}

// TestRecordCannotBeWritten: a program without a record is not started, and nothing is left of the try.
func TestRecordCannotBeWritten(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	path := recordPath(w.s.Dir, w.name())
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	w.run(w.program())
	r := w.until("it cannot start", func(r Record) bool { return r.State == CannotStart })
	if !strings.Contains(r.Message, "file exists") || len(w.processesOfTest()) > 1 {
		t.Errorf("processes %v, record %+v", w.processesOfTest(), r)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.until("it runs", runs)
	if said := w.hears(1); len(said) != 1 {
		t.Errorf("programs have said %q", said)
	}
}

func TestRunThatHasEnded(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := w.program()
	p.Generation = "2"
	if err := w.s.Run(ctx, p, nil); err != nil || !lives(w.record().PID) {
		t.Errorf("Run: %v, the program lives: %v", err, lives(w.record().PID))
	}
}

// TestNoStorm: a program that repeatedly dies immediately causes few records and log lines for each start.
func TestNoStorm(t *testing.T) {
	t.Parallel()
	const starts = 100
	w := newSupervised(t, func(o *Options) { o.Retry = queue.Backoff{Min: time.Millisecond, Max: time.Millisecond} })
	w.run(w.script("exit 1"))
	r := w.until("it was started often", func(r Record) bool { return r.Restarts >= starts })
	w.halt()
	w.mu.Lock()
	told := len(w.records)
	w.mu.Unlock()
	if lines := strings.Count(w.log.String(), "\n"); told > 2*r.Restarts+3 || lines > 2*r.Restarts+3 {
		t.Errorf("%d restarts made %d records and %d lines of the log", r.Restarts, told, lines)
	}
	if dirs, err := w.s.group(w.name()).starts(); len(dirs) > 2 {
		t.Errorf("cgroups of starts that have left nothing: %v, %v", dirs, err)
	}
}

// TestRecordOfAnotherBoot: a pid of an earlier boot is not adopted, and not ended either.
func TestRecordOfAnotherBoot(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	foreign := w.record()
	// The host has booted: nothing is in the cgroup, but a process has the pid.
	if err := enter(filepath.Dir(filepath.Dir(w.s.cgroups)), foreign.PID); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Record){
		"another boot":       func(r *Record) { r.Boot = "earlier" },
		"another start time": func(r *Record) { r.StartTime-- },
	} {
		t.Run(what, func(t *testing.T) {
			r, p := foreign, w.script("echo $$ >own; exec sleep 1000")
			r.Hash, r.Restarts = p.hash(), 7
			change(&r)
			w.write(r)
			if err := w.s.Stop(t.Context(), w.name()); err != nil || !lives(foreign.PID) {
				t.Errorf("Stop: %v; the foreign process lives: %v", err, lives(foreign.PID))
			}
			w.write(r)
			w.run(p)
			own := w.pidFrom("own")
			if now := w.record(); !lives(foreign.PID) || now.Restarts != restarts(r) {
				t.Errorf("the foreign process lives: %v; record %+v", lives(foreign.PID), now)
			}
			w.halt()
			if err := w.s.Stop(t.Context(), w.name()); err != nil || !lives(foreign.PID) || lives(own) {
				t.Errorf("Stop: %v; the foreign process lives: %v, the own one: %v", err, lives(foreign.PID), lives(own))
			}
			if err := os.Remove(filepath.Join(w.dir, "own")); err != nil {
				t.Fatal(err)
			}
		})
	}
	crash(w, foreign.PID)
	if _, err := unix.Wait4(foreign.PID, nil, 0, nil); err != nil {
		t.Error(err)
	}
}

// write puts a record in the place of the program's.
func (w *supervised) write(r Record) {
	w.Helper()
	if err := durable.WriteJSON(recordPath(w.s.Dir, w.name()), r); err != nil {
		w.Fatal(err)
	}
}

// restarts returns how often a program counts as restarted whose record this is: restarts before a boot do not count,
// an end that no supervisor has seen does.
func restarts(r Record) int {
	if r.Boot == "earlier" {
		return 0
	}
	return r.Restarts + 1
}

// TestUnreadableRecord: the main process is unknown, so all processes of the last start are ended before the program
// is started again.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, path string) error{
		"missing": func(_ *testing.T, path string) error { return os.Remove(path) },
		"torn":    func(_ *testing.T, path string) error { return os.Truncate(path, 10) },
		"empty":   func(_ *testing.T, path string) error { return os.Truncate(path, 0) },
		"huge":    func(_ *testing.T, path string) error { return os.Truncate(path, 1<<30) },
		"other": func(_ *testing.T, path string) error {
			return durable.WriteFile(path, []byte(`{"format":1,"name":"x"}`))
		},
		"link": func(t *testing.T, path string) error {
			return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path), rename(t, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSupervised(t)
			w.startAndLeave(w.program())
			old := w.record()
			if err := damage(t, recordPath(w.s.Dir, w.name())); err != nil {
				t.Fatal(err)
			}
			w.records = nil
			w.run(w.program())
			w.until("it runs", runs)
			if said := w.hears(2); strings.HasPrefix(said[1], "met") || lives(old.PID) {
				t.Errorf("the old one lives: %v; programs have said %q", lives(old.PID), said)
			}
		})
	}
}

// rename removes what a damaged record leads to when the test ends.
func rename(t *testing.T, path string) error {
	t.Cleanup(func() { _ = os.Remove(path + ".moved") })
	return nil
}

func TestNewerRecord(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	path := recordPath(w.s.Dir, w.name())
	if err := durable.WriteFile(path, []byte(`{"format":2,"pid":"seven"}`)); err != nil {
		t.Fatal(err)
	}
	if err := w.s.Run(t.Context(), w.program(), nil); !errors.Is(err, durable.ErrNewer) {
		t.Errorf("Run: %v", err)
	}
	if err := w.s.Stop(t.Context(), w.name()); !errors.Is(err, durable.ErrNewer) {
		t.Errorf("Stop: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutCgroup(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"read-only": "/proc/volplane", "nothing": "/nowhere/volplane"} {
		t.Run(name, func(t *testing.T) {
			w := newSupervised(t, func(o *Options) { o.cgroups = dir })
			if name == "nothing" {
				w.s.cgroups = ""
			}
			p := w.script(`sleep 1000 & echo $! >child; echo $$ >>said; exec sleep 1000`)
			w.run(p)
			w.hears(1)
			lost := w.pidFrom("child")
			r := w.until("it runs", runs)
			if r.Cgroup != "" || r.NoCgroup == "" {
				t.Errorf("%+v", r)
			}
			w.halt()
			w.run(p)
			crash(w, r.PID)
			w.hears(2)
			w.until("it runs again", func(now Record) bool { return runs(now) && now.PID != r.PID })
			child := w.pidFrom("child")
			w.halt()
			if err := w.s.Stop(t.Context(), w.name()); err != nil {
				t.Error(err)
			}
			eventually(t, "the process group has ended", func() bool { return !lives(child) })
			// What a crash has left cannot be found.
			if !lives(lost) {
				t.Error("the child of the first program has ended")
			}
			crash(w, lost)
		})
	}
}

func TestStopMayBeRepeated(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.startAndLeave(w.program())
	for range 3 {
		if err := w.s.Stop(t.Context(), w.name()); err != nil {
			t.Error(err)
		}
		w.noneLeft()
	}
	if _, err := Read(w.s.Dir, w.name()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read: %v", err)
	}
}

func TestOneSupervisor(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	w.run(w.program())
	w.until("it runs", runs)
	if err := w.s.Run(t.Context(), w.program(), nil); !errors.Is(err, ErrHeld) {
		t.Errorf("a second Run: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, w.s.Options); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("a second Open: %v", err)
	}
}

func TestInvalidPrograms(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	const secret = "hunter2hunter2"
	for name, p := range map[string]Program{
		"no name":       {Argv: []string{"/bin/true"}},
		"a path":        {Name: "../x", Argv: []string{"/bin/true"}},
		"a hidden file": {Name: ".x", Argv: []string{"/bin/true"}},
		"long":          {Name: strings.Repeat("x", 300), Argv: []string{"/bin/true"}},
		"no command":    {Name: "x"},
		"relative":      {Name: "x", Argv: []string{"true"}},
		"relative dir":  {Name: "x", Argv: []string{"/bin/true"}, Dir: "x"},
		"no path":       {Name: "x", Argv: []string{"/bin/true"}, Handed: "x"},
		"no K=V":        {Name: "x", Argv: []string{"/bin/true"}, Env: []string{secret}},
		"no K":          {Name: "x", Argv: []string{"/bin/true"}, Env: []string{"=" + secret}},
		"NUL in a V":    {Name: "x", Argv: []string{"/bin/true"}, Env: []string{"K=" + secret + "\x00"}},
		"NUL":           {Name: "x", Argv: []string{"/bin/true", "\x00"}},
	} {
		err := w.s.Run(t.Context(), p, nil)
		if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.s.Stop(t.Context(), "../x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("Stop: %v", err)
	}
}
