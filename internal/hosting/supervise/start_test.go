package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/process/queue"
)

// TestCannotStart: each thing that the kernel does not execute has its cause in words, and starts as soon as its file
// is right, without waiting for the next try.
func TestCannotStart(t *testing.T) {
	t.Parallel()
	write := func(text string, mode os.FileMode) func(string) error {
		return func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode))
		}
	}
	binary := func(change func([]byte) []byte) func(string) error {
		return func(path string) error {
			data, err := os.ReadFile("/proc/self/exe")
			if err != nil {
				return err
			}
			return os.WriteFile(path, change(data), 0o700)
		}
	}
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"missing":        {func(string) error { return nil }, "P cannot be found: no such file or directory"},
		"not executable": {write("#!/bin/sh\n", 0o600), "P is not executable: chmod +x P"},
		"a directory":    {func(path string) error { return os.Mkdir(path, 0o700) }, "P is a directory"},
		"a pipe":         {func(path string) error { return unix.Mkfifo(path, 0o700) }, "P is not a regular file"},
		"empty":          {write("", 0o700), "P is empty"},
		"no script":      {write("echo", 0o700), "P is neither a binary nor a script with #! in its first line"},
		"no interpreter": {write("#!\necho\n", 0o700), "P names no interpreter in its first line"},
		"carriage return": {
			write("#!/bin/sh\r\necho\r\n", 0o700),
			`the first line of P ends with a carriage return: sed -i 's/\r$//' P`,
		},
		"missing interpreter":    {write("#!/none/sh -x\n", 0o700), `the interpreter "/none/sh" of P does not exist`},
		"interpreter is no file": {write("#! /etc\n", 0o700), `the interpreter "/etc" of P is not executable`},
		"another machine": {
			binary(func(b []byte) []byte { b[18] ^= 1; return b[:1000] }),
			"P was built for another machine than " + runtime.GOARCH,
		},
		"a link to nothing": {
			func(path string) error { return os.Symlink("none", path) }, "P cannot be found: no such file or directory",
		},
		"a link to itself": {
			func(path string) error { return os.Symlink(path, path) }, "follow P: too many levels of symbolic links",
		},
		"writable by others": {write("#!/bin/sh\n", 0o777), "others can write it: P: chmod go-w P"},
	} {
		t.Run(name, func(t *testing.T) {
			// Only a change of the file starts the program again within the test.
			w := newSupervised(t, func(o *Options) { o.Retry = queue.Backoff{Min: time.Hour, Max: time.Hour} })
			path := filepath.Join(w.dir, "P")
			if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			w.run(Program{Name: w.name(), Argv: []string{path}})
			r := w.until("it cannot start", func(r Record) bool { return r.State == CannotStart })
			if got := strings.ReplaceAll(r.Message, path, "P"); got != c.want || r.PID != 0 || r.Restarts != 0 {
				t.Errorf("%q, want %q; %+v", got, c.want, r)
			}
			if err := errors.Join(os.RemoveAll(path), write("#!/bin/sh\nexec sleep 1000\n", 0o700)(path+".new"),
				os.Rename(path+".new", path)); err != nil {
				t.Fatal(err)
			}
			if r := w.until("it runs", runs); r.Message != "" || !r.NextAt.IsZero() {
				t.Errorf("%+v", r)
			}
			if lines := strings.Count(w.log.String(), "cannot be started"); lines != 1 {
				t.Errorf("the cause was logged %d times", lines)
			}
		})
	}
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	p := w.program()
	p.Dir = filepath.Join(w.dir, "none")
	w.run(p)
	want := "the working directory " + p.Dir + " cannot be entered: no such file or directory"
	if r := w.until("it cannot start", func(r Record) bool { return r.State == CannotStart }); r.Message != want {
		t.Errorf("%+v", r)
	}
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w.until("it runs", runs)
}

// TestHandedDirectory: the program has the directory open, also when its path leads elsewhere since.
func TestHandedDirectory(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	p := Program{Name: w.name(), Argv: []string{"/bin/sh", "-c", "cat /proc/self/fd/200/new; sleep 1000"}}
	p.Handed = filepath.Join(w.dir, "handed")
	w.run(p)
	want := "the directory " + p.Handed + " cannot be given to it: no such file or directory"
	if r := w.until("it cannot start", func(r Record) bool { return r.State == CannotStart }); r.Message != want {
		t.Errorf("%+v", r)
	}
	if err := errors.Join(os.Mkdir(p.Handed, 0o700),
		os.WriteFile(filepath.Join(p.Handed, "new"), []byte("for it alone\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r := w.until("it runs", runs)
	if err := os.Rename(p.Handed, p.Handed+".old"); err != nil {
		t.Fatal(err)
	}
	is, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", r.PID, HandedFD))
	if err != nil || is != p.Handed+".old" {
		t.Errorf("%q, %v", is, err)
	}
	if others, err := os.Stat(fmt.Sprintf("/proc/self/fd/%d", HandedFD)); err == nil {
		t.Errorf("this process has it, too: %v", others)
	}
}

func TestCauses(t *testing.T) {
	t.Parallel()
	p := &Program{Argv: []string{"/bin/sh"}}
	for errno, want := range map[unix.Errno]string{
		unix.E2BIG:   "the arguments and the environment are too long",
		unix.ETXTBSY: "/bin/sh is being written",
		unix.ENOMEM:  "/bin/sh cannot be executed: cannot allocate memory",
		unix.EACCES:  "/bin/sh cannot be executed: permission denied",
	} {
		if got := cause(p, failure{Step: stepExec, Errno: errno}); got != want {
			t.Errorf("%v: %q, want %q", errno, got, want)
		}
	}
	// A binary whose loader does not exist.
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	loader := loaderOf("/bin/sh")
	other := strings.Repeat("x", len(loader))
	path := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(sh), loader, other)), 0o700); err != nil {
		t.Fatal(err)
	}
	p.Argv[0] = path
	want := fmt.Sprintf("the loader %q of %s does not exist: the program was built for another C library", other, path)
	err = exec.Command(path).Run()
	if got := cause(p, failure{Step: stepExec, Errno: unix.ENOENT}); got != want || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%q, want %q; the kernel says %v", got, want, err)
	}
}

func TestParseInterpreter(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]interpreter{
		"#!/bin/sh\n":                {path: "/bin/sh"},
		"#!/bin/sh":                  {path: "/bin/sh"},
		"#! \t/usr/bin/env\tsh -x\n": {path: "/usr/bin/env"},
		"#!/bin/sh\r\n":              {path: "/bin/sh", carriageReturn: true},
		"#!/bin/sh -x\r\n":           {path: "/bin/sh", carriageReturn: true},
		"#!\n":                       {},
		"":                           {},
		"\n#!/bin/sh\n":              {},
		"\x7fELF":                    {},
	} {
		if got := parseInterpreter([]byte(head)); got != want {
			t.Errorf("%q: %+v, want %+v", head, got, want)
		}
	}
}

// TestWhatAProgramInherits: nothing of the supervisor but what it is meant to have.
func TestWhatAProgramInherits(t *testing.T) {
	t.Setenv("OURS", "1")
	defer unix.Umask(unix.Umask(0o077))
	signal.Ignore(unix.SIGUSR1)
	defer signal.Reset(unix.SIGUSR1)
	w := newSupervised(t)
	// The masks are those of grep: a shell blocks signals of its own while it starts a command.
	p := w.script(`
env | grep -v ^_= | sort >inherited
umask >>inherited
ulimit -n >>inherited
grep -E '^Sig(Blk|Ign)' /proc/self/status >>inherited
echo $$ >said
exec sleep 1000`)
	p.Env = append(p.Env, "OWN=a b")
	w.run(p)
	w.hears(1)
	got, err := os.ReadFile(filepath.Join(w.dir, "inherited"))
	// A program of Go has a higher limit than it was started with.
	limit, errLimit := exec.Command("/bin/sh", "-c", "ulimit -n").Output()
	none := "\t0000000000000000\n"
	want := "OWN=a b\nPATH=/usr/bin:/bin\nPWD=" + w.dir + "\n0022\n" + string(limit) + "SigBlk:" + none + "SigIgn:" + none
	if trimmed := strings.ReplaceAll(string(got), "OLDPWD=/\n", ""); trimmed != want || err != nil || errLimit != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestOpenFiles: a program has its standard files and no other.
func TestOpenFiles(t *testing.T) {
	// The parent of this process has left a file open.
	leaked, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	w := newSupervised(t)
	w.run(w.script("echo $$ >said; exec sleep 1000"))
	w.hears(1)
	dir := fmt.Sprintf("/proc/%d/fd/", w.until("it runs", runs).PID)
	var got []string
	eventually(t, "the shell has become another program", func() bool {
		entries, err := os.ReadDir(dir)
		got = nil
		for _, e := range entries {
			to, _ := os.Readlink(dir + e.Name())
			got = append(got, to)
		}
		return err == nil && len(entries) == 3
	})
	log := OutputPath(w.s.Dir, w.name())
	if !slices.Equal(got, []string{"/dev/null", log, log}) {
		t.Errorf("open files: %v", got)
	}
	if st, err := os.Stat(log); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("log: %v, %v", st.Mode(), err)
	}
}

// TestBytes: arguments and values need not be UTF-8.
func TestBytes(t *testing.T) {
	t.Parallel()
	w := newSupervised(t)
	p := w.script(`printf %s "$1$V" >bytes; echo >said; exec sleep 1000`)
	p.Argv, p.Env = append(p.Argv, "\xff\x01"), append(p.Env, "V=\xfe\n\"")
	w.run(p)
	w.until("it has written", func(Record) bool { _, err := os.Stat(filepath.Join(w.dir, "said")); return err == nil })
	if got, err := os.ReadFile(filepath.Join(w.dir, "bytes")); string(got) != "\xff\x01\xfe\n\"" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestGateAlone: a gate that receives no program ends and does nothing, no matter what has started it.
func TestGateAlone(t *testing.T) {
	t.Parallel()
	for name, word := range map[string]string{
		"nothing": "", "half a word": `{"Argv":["L2Jpbi90cnVl"]`, "no program": "{}", "noise": "\x00\x01", "a list": "[]",
	} {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self(t), "gate")
		cmd.ExtraFiles = []*os.File{reader}
		if _, err := writer.WriteString(word); err != nil {
			t.Fatal(err)
		}
		_ = writer.Close()
		out, err := cmd.CombinedOutput()
		_ = reader.Close()
		if cmd.ProcessState.ExitCode() != gateClosed || !strings.HasPrefix(string(out), "volplane: not started: ") {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	out, err := exec.Command(self(t), "gate").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not started") {
		t.Errorf("without pipes: %v, %s", err, out)
	}
}

func TestBrokenGate(t *testing.T) {
	t.Parallel()
	for name, argv := range map[string][]string{
		"missing": {"/none/gate"}, "ends at once": {"/bin/false"}, "does not hear": {"/bin/sleep", "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSupervised(t, func(o *Options) { o.Gate = argv })
			p := w.program()
			if name != "missing" {
				p.Env = []string{"LONG=" + strings.Repeat("x", 1<<20)} // more than a pipe takes
			}
			w.run(p)
			if name == "does not hear" {
				// Run ends nevertheless.
				eventually(t, "the gate is there", func() bool { r, err := Read(w.s.Dir, p.Name); return err == nil && r.PID != 0 })
				w.halt()
				return
			}
			w.until("it cannot start", func(r Record) bool { return r.State == CannotStart && r.PID == 0 })
		})
	}
}

// TestNothingLeaks: starts leave no descriptor in the supervisor.
func TestNothingLeaks(t *testing.T) {
	w := newSupervised(t, func(o *Options) { o.Retry = queue.Backoff{Min: time.Millisecond, Max: time.Millisecond} })
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	p := w.script("exit 1")
	w.run(p)
	w.until("it was started", func(r Record) bool { return r.Restarts > 2 })
	w.halt()
	before := open()
	w.run(p)
	w.until("it was started often", func(r Record) bool { return r.Restarts > 30 })
	if err := os.Chmod(p.Argv[0], 0o600); err != nil {
		t.Fatal(err)
	}
	w.until("it cannot start", func(r Record) bool { return r.State == CannotStart })
	w.halt()
	if after := open(); after > before {
		t.Errorf("%d files were open, %d are", before, after)
	}
}

// TestOneInotify: however many programs there are, they use one inotify instance of the few that the host has.
func TestOneInotify(t *testing.T) {
	const programs = 10
	w := newSupervised(t, func(o *Options) { o.Retry = queue.Backoff{Min: time.Hour, Max: time.Hour} })
	ctx, cancel := context.WithCancel(t.Context())
	var running, told sync.WaitGroup
	for i := range programs {
		p := w.program()
		p.Name, p.Argv[0] = fmt.Sprint("none-", i), "/none"
		told.Add(1)
		running.Go(func() {
			_ = w.s.Run(ctx, p, func(r Record) {
				if r.State == CannotStart {
					told.Done()
				}
			})
		})
	}
	w.run(w.program())
	w.until("it runs", runs)
	told.Wait()
	inotify := 0
	links, err := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.Contains(to, "inotify") {
			inotify++
		}
	}
	if inotify != 1 || err != nil {
		t.Errorf("%d programs use %d instances, %v", programs+1, inotify, err)
	}
	cancel()
	running.Wait()
	for i := range programs {
		if err := w.s.Stop(t.Context(), fmt.Sprint("none-", i)); err != nil {
			t.Error(err)
		}
	}
}

// TestExits: the kernel reports how processes have ended that are not children of this one, if it can.
func TestExits(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", `sh -c 'read x; exit 3' <&3 & echo $!; wait; exec sleep 1000`)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{reader}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := 0
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	p, err := openProcess(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = writer.WriteString("\n")
	if err = errors.Join(err, p.wait(t.Context())); err != nil {
		t.Fatal(err)
	}
	_, errInfo := p.info()
	if e := p.exit(); e.known != (errInfo == nil) || e.known && e.status != syscall.WaitStatus(3<<8) {
		t.Errorf("%+v, %v", e, errInfo)
	}
}
