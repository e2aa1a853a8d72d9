package supervise

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/process/queue"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// TestMain is also what tests start: the gate, a program, and a supervisor that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "gate":
			os.Exit(Gate())
		case "program":
			os.Exit(program(os.Args[2]))
		case "daemon":
			os.Exit(daemon(os.Args[2]))
		case "supervisor":
			os.Exit(supervisor(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// program is a program that must never run twice: it records in files of a directory that it has started, and that it
// has met another one. It ends with success when it is asked to stop.
func program(dir string) int {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	lock, err := os.OpenFile(filepath.Join(dir, "alive"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 3
	}
	word := "started"
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		word = "met another"
	}
	say(dir, fmt.Sprintf("%s %d", word, os.Getpid()))
	<-asked
	return 0
}

// daemon is a program that leaves another one in a session of its own, and ends with success.
func daemon(dir string) int {
	cmd := exec.Command(os.Args[0], "program", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Start() != nil {
		return 3
	}
	return 0
}

// say appends a line to what programs have said.
func say(dir, line string) {
	f, err := os.OpenFile(filepath.Join(dir, "said"), os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
	}
	if err != nil {
		panic(err)
	}
}

// supervised is a supervisor and a directory in which its programs say what they do.
type supervised struct {
	*testing.T
	s   *Supervisor
	dir string
	log *safeBuffer
	// records are all that were reported.
	mu      sync.Mutex
	records []Record
	// end ends the Run that go has started, and returns its error.
	end func() error
}

type safeBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// options are those of tests: what takes seconds takes milliseconds.
func options(t testing.TB, dir string) Options {
	return Options{
		Dir: filepath.Join(dir, "state"), Gate: []string{self(t), "gate"}, Log: slog.New(slog.DiscardHandler),
		Retry: queue.Backoff{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond},
	}
}

func newSupervised(t *testing.T, change ...func(*Options)) *supervised {
	t.Helper()
	w := &supervised{T: t, dir: t.TempDir(), log: &safeBuffer{}}
	o := options(t, w.dir)
	o.Log = slog.New(slog.NewTextHandler(w.log, nil))
	for _, c := range change {
		c(&o)
	}
	w.open(o)
	t.Cleanup(func() {
		w.halt()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.s.Stop(ctx, w.name()); err != nil {
			t.Error(err)
		}
		if err := w.s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(w.s.cgroups); w.s.cgroups != "" && err == nil {
			t.Errorf("left after Close: %s", w.s.cgroups)
		}
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
		w.noneLeft()
	})
	return w
}

func (w *supervised) open(o Options) {
	w.Helper()
	s, err := Open(w.Context(), o)
	if err != nil {
		w.Fatal(err)
	}
	w.s = s
}

// name is the name of the program that is supervised.
func (w *supervised) name() string { return "driver.example.com-node" }

// program returns the test's program, that says when it starts.
func (w *supervised) program() Program {
	return Program{Name: w.name(), Argv: []string{self(w), "program", w.dir}}
}

// daemon returns a program that becomes a daemon.
func (w *supervised) daemon() Program {
	return Program{Name: w.name(), Argv: []string{self(w), "daemon", w.dir}}
}

// script returns a program that is a shell script.
func (w *supervised) script(text string) Program {
	w.Helper()
	path := filepath.Join(w.dir, "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncd "+w.dir+"\n"+text), 0o700); err != nil {
		w.Fatal(err)
	}
	return Program{Name: w.name(), Argv: []string{path}, Env: []string{"PATH=/usr/bin:/bin"}}
}

// run runs a program until halt, or until the test ends.
func (w *supervised) run(p Program) {
	w.Helper()
	w.halt()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- w.s.Run(ctx, p, func(r Record) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records = append(w.records, r)
		})
	}()
	w.end = func() error { cancel(); return <-ended }
}

// halt ends the Run, and leaves the program.
func (w *supervised) halt() {
	w.Helper()
	if w.end == nil {
		return
	}
	if err := w.end(); err != nil {
		w.Errorf("Run ended with %v", err)
	}
	w.end = nil
}

// record returns the last record that was reported.
func (w *supervised) record() Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.records) == 0 {
		return Record{}
	}
	return w.records[len(w.records)-1]
}

// until waits until the last record is as it must be, and returns it.
func (w *supervised) until(what string, is func(Record) bool) Record {
	w.Helper()
	eventually(w, what, func() bool { return is(w.record()) })
	return w.record()
}

func runs(r Record) bool { return r.State == Running && r.PID != 0 }

// said returns the lines that programs have said.
func (w *supervised) said() []string {
	data, _ := os.ReadFile(filepath.Join(w.dir, "said"))
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// hears waits until programs have written a number of lines.
func (w *supervised) hears(n int) []string {
	w.Helper()
	eventually(w, fmt.Sprintf("programs have said %d lines", n), func() bool {
		said := w.said()
		return len(said) >= n && said[0] != ""
	})
	return w.said()
}

// pidFrom waits for a file with a pid, which a program writes.
func (w *supervised) pidFrom(file string) int {
	w.Helper()
	pid := 0
	eventually(w, "there is a pid in "+file, func() bool {
		data, err := os.ReadFile(filepath.Join(w.dir, file))
		if err != nil || !bytes.HasSuffix(data, []byte("\n")) {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(data)))
		return err == nil
	})
	return pid
}

// lives says whether a process is alive and not a zombie.
func lives(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])[0]
	return string(state) != "Z" && string(state) != "X"
}

// processesOfTest returns the command lines of processes that name the test's directory, and of gates.
func (w *supervised) processesOfTest() []string {
	var out []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		data, _ := os.ReadFile(path)
		args := strings.Split(string(data), "\x00")
		if strings.Contains(string(data), w.dir) || len(args) > 1 && args[0] == self(w) && args[1] == "gate" {
			out = append(out, path+": "+strings.Join(args, " "))
		}
	}
	return out
}

// noneLeft wants no process, no file and no cgroup of a program that was stopped.
func (w *supervised) noneLeft() {
	w.Helper()
	var left []string
	eventually(w, "all processes have ended", func() bool { left = w.processesOfTest(); return len(left) == 0 })
	files, err := os.ReadDir(filepath.Join(w.dir, "state"))
	if err != nil || slices.ContainsFunc(files, func(e os.DirEntry) bool { return e.Name() != "lock" }) {
		w.Errorf("left after Stop: %v, %v, processes %v", files, err, left)
	}
	if dir := w.s.group(w.name()); dir != "" {
		if _, err := os.Stat(string(dir)); err == nil {
			w.Errorf("left after Stop: %s", dir)
		}
	}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for end := time.Now().Add(patience); !is(); <-pause.C {
		if time.Now().After(end) {
			t.Fatalf("not so after %s: %s", patience, what)
		}
	}
}
