package driver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// TestWhatADriverGets: a session of its own, an empty standard input, nothing of
// our environment (H6).
func TestWhatADriverGets(t *testing.T) {
	t.Setenv("SECRET_OF_OURS", "x")
	inherit(t)
	b := newBench(t, ready+`
mount) env | cut -d= -f1 >"$root/env"; cut -d' ' -f1,5,6 /proc/$$/stat >"$root/stat"; cat >"$root/stdin"; pwd >"$root/pwd"
	ls /proc/$$/fd >"$root/fds"; `+mountsOne+` ;;
`+unmounts, options(10*time.Second))
	if _, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range b.lines("env") {
		if !slices.Contains([]string{"PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}, name) {
			t.Errorf("the driver has %s in its environment", name)
		}
	}
	if s := b.lines("stat"); len(s) != 3 || s[0] != s[1] || s[0] != s[2] {
		t.Errorf("process, group and session: %v", s)
	}
	if got := b.lines("stdin"); len(got) > 0 {
		t.Errorf("standard input: %v", got)
	}
	if got := strings.Join(b.lines("pwd"), " "); got != "/" {
		t.Errorf("working directory: %s", got)
	}
	// A shell keeps its script open at a number from 10 on.
	ours := func(fd string) bool { return len(fd) == 1 && fd > "2" }
	if fds := b.lines("fds"); len(fds) < 3 || slices.ContainsFunc(fds, ours) {
		t.Errorf("the driver has files %v open", fds)
	}
}

// inherit opens a file that does not close by itself, as one is that who started
// us has left open.
func inherit(t *testing.T) {
	t.Helper()
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
}

// TestDaemonsLive: who keeps the pipe does not keep the call, and is not hurt by
// its end, however much it prints (H6).
func TestDaemonsLive(t *testing.T) {
	b := newBench(t, ready+`
mount) ( i=0; while :; do head -c 4096 /dev/zero; head -c 4096 /dev/zero >&2; i=$((i+1)); echo $i >"$root/progress"; sleep 0.002; done ) & echo $! >>"$root/daemons"
	`+mountsOne+` ;;
`+unmounts, options(time.Minute))
	why, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{})
	if err != nil || why.Reason != volume.ReasonFlexMounted {
		t.Fatal(why, err)
	}
	daemon := b.lines("daemons")[0]
	// More than the pipes can hold.
	eventually(t, "the daemon goes on", func() bool {
		p := b.lines("progress")
		n := 0
		if len(p) > 0 {
			n, _ = strconv.Atoi(p[0])
		}
		return n > 60
	})
	if !running(daemon) {
		t.Error("the daemon is gone")
	}
}

// TestTimeLimitKillsTheGroup, and not those who have left it (H6).
func TestTimeLimitKillsTheGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, ready+`
mount) setsid sh -c 'echo $$ >>"'"$root"'/daemons"; exec sleep 1000' & sleep 1000 & echo $! >>"$root/group"
	while ! [ -s "$root/daemons" ]; do :; done; sleep 1000 ;;
`, options(10*time.Second))
	_, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{})
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != volume.Unknown || !errors.Is(err, decide.ErrTimeLimit) {
		t.Fatal(err)
	}
	eventually(t, "the group is gone", func() bool { return !running(b.lines("group")[0]) })
	if !running(b.lines("daemons")[0]) {
		t.Error("the daemon was killed")
	}
}

// TestCallsEndWithTheirHost: after kill -9 no old call runs beside a new one.
func TestCallsEndWithTheirHost(t *testing.T) {
	t.Parallel()
	root := place(t)
	path := filepath.Join(root, "plugins", "t")
	install(t, path, script(root, ready+"\nmount) echo $$ >>\"$root/daemons\"; exec sleep 1000 ;;"))
	host := exec.CommandContext(t.Context(), os.Args[0])
	host.Env = append(os.Environ(), hostMode+"="+path)
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	b := bench{root: root}
	eventually(t, "the call runs", func() bool { return len(b.lines("daemons")) == 1 && running(b.lines("daemons")[0]) })
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	eventually(t, "the call has ended", func() bool { return !running(b.lines("daemons")[0]) })
}

// TestCgroups: a driver and what it leaves live outside of our cgroup, where there
// is cgroup v2, and start as well without.
func TestCgroups(t *testing.T) {
	name := decide.Name{Vendor: "volplane.test", Driver: "t" + strconv.Itoa(os.Getpid())}
	dir, err := Cgroup(name)
	if err != nil && !errors.Is(err, ErrNoCgroup) {
		t.Fatal(err)
	}
	if again, err := Cgroup(name); again != dir || err != nil && dir != "" {
		t.Errorf("again: %s, %v", again, err)
	}
	t.Cleanup(func() {
		if dir == "" {
			return
		}
		eventually(t, "the cgroup can be removed", func() bool { return unix.Rmdir(dir) == nil })
		_ = unix.Rmdir(filepath.Dir(dir))
	})
	for _, cgroup := range []string{dir, "", "/nowhere", t.TempDir()} {
		o := options(10 * time.Second)
		o.Cgroup = cgroup
		b := newBench(t, ready+`
mount) grep ^0:: /proc/self/cgroup >"$root/cgroup"; sleep 1000 & echo $! >>"$root/daemons"; `+mountsOne+` ;;
`+unmounts, o)
		if _, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err != nil {
			t.Errorf("in %q: %v", cgroup, err)
		}
		want := cgroup != "" && cgroup == dir
		if got := strings.Join(b.lines("cgroup"), ""); strings.HasSuffix(got, "volplane-flex/"+name.Dir()) != want {
			t.Errorf("in %q: it ran in %s", cgroup, got)
		}
	}
}

// TestBeingWritten: an executable that is open for writing is not started.
func TestBeingWritten(t *testing.T) {
	t.Parallel()
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(10*time.Second))
	w, err := os.OpenFile(b.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Mount(t.Context(), b.dir(), "", decide.Volume{})
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != volume.Failed || !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("while it is open for writing: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	touched := time.Now().Add(time.Hour)
	if err := os.Chtimes(b.Path, touched, touched); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err != nil {
		t.Errorf("touched: %v", err)
	}
}

// TestWrittenForAMoment: another process that installs the file, and every process that
// this one starts at that time, has the file open for writing for a moment.
func TestWrittenForAMoment(t *testing.T) {
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(time.Minute))
	w, err := os.OpenFile(b.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.CommandContext(t.Context(), "sleep", "0.1")
	holder.ExtraFiles = []*os.File{w}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err != nil {
		t.Error(err)
	}
	if err := holder.Wait(); err != nil {
		t.Error(err)
	}
}

// TestChanged: an executable that is not the one that was probed is not started:
// half of a script is a script, too.
func TestChanged(t *testing.T) {
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, options(10*time.Second))
	text, err := os.ReadFile(b.Path)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"another": func() error { install(t, b.Path, string(text)+"# 2\n"); return nil },
		"half":    func() error { return os.WriteFile(b.Path, text[:len(text)/2], 0o700) }, //nolint:gosec // it is to be run
		"gone":    func() error { return os.Remove(b.Path) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		_, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{})
		var e *CallError
		if !errors.As(err, &e) || e.Outcome != volume.Failed || !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if calls := b.lines("calls"); len(calls) > 0 {
		t.Errorf("it was started: %v", calls)
	}
}

// TestTail: the end of what is printed is kept, in little memory.
func TestTail(t *testing.T) {
	var k tail
	block := strings.Repeat("noise\n", 10_000)
	for range 1000 {
		if n, err := k.Write([]byte(block)); n != len(block) || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := k.Write([]byte("end")); err != nil {
		t.Fatal(err)
	}
	if got := k.last(); len(got) != decide.MaxOutput || !strings.HasSuffix(string(got), "noise\nend") || !k.cut {
		t.Errorf("kept %d bytes, cut %v", len(got), k.cut)
	}
	if cap(k.b) > 4*decide.MaxOutput {
		t.Errorf("uses %d bytes", cap(k.b))
	}
}

// TestProbe: which drivers are refused, and what a driver reports about itself.
func TestProbe(t *testing.T) {
	t.Parallel()
	root := place(t)
	path := filepath.Join(root, "t")
	name := decide.Name{Driver: "t"}
	for _, c := range []struct {
		name, content string
		want          error
	}{
		{"good", script(root, ready), nil},
		{"capabilities null", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":null}'\n", nil},
		{"empty file", "", errNotStarted},
		{"no interpreter", "#!/nowhere/sh\n", errNotStarted},
		{"says nothing", "#!/bin/sh\n", decide.ErrNoAnswer},
		{"not supported", "#!/bin/sh\necho '{\"status\":\"Not supported\"}'; exit 1\n", ErrNotSupported},
		{
			"capabilities of a wrong kind", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":{\"attach\":\"no\"}}'\n",
			decide.ErrMalformed,
		},
		{"hangs", "#!/bin/sh\nsleep 1000\n", decide.ErrTimeLimit},
		{
			"changes itself",
			"#!/bin/sh\necho >>\"$0.x\"; cp \"$0\" \"$0.y\"; mv \"$0.y\" \"$0\"; echo '{\"status\":\"Success\"}'\n", ErrChanged,
		},
	} {
		install(t, path, c.content)
		o := options(time.Minute)
		if errors.Is(c.want, decide.ErrTimeLimit) {
			o = options(3 * time.Second)
		}
		d, err := Probe(t.Context(), name, path, o)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d == nil || len(d.Hash) != 16 {
			t.Errorf("%s: the executable is not described: %+v", c.name, d)
		}
	}
	if _, err := os.Create(filepath.Join(root, "plain")); err != nil { //nolint:gosec // in a directory of the test
		t.Fatal(err)
	}
	path = filepath.Join(root, "plain")
	if _, err := Probe(t.Context(), name, path, options(time.Minute)); !errors.Is(err, unix.EACCES) {
		t.Errorf("not executable: %v", err)
	}
	if d, err := Probe(t.Context(), name, filepath.Join(root, "no"), options(time.Minute)); err == nil || d != nil {
		t.Errorf("absent: %v", err)
	}
}
