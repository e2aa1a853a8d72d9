package flex

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// lifeMode, in the environment, makes this binary a Host over a directory, which
// mounts a volume and then waits to be killed; cgroupMode is its drivers' cgroup.
const lifeMode, cgroupMode = "FLEX_TEST_LIFE", "FLEX_TEST_CGROUP"

// lefty is the driver of these tests.
func lefty() decide.Name { return decide.Name{Vendor: "example.com", Driver: "t"} }

// hostAt is a host over a directory.
func hostAt(root, cgroup string) *Host {
	return &Host{
		Dir: filepath.Join(root, "plugins"), StateDir: filepath.Join(root, "state"), Log: slog.New(slog.DiscardHandler),
		Options: func(decide.Name) Options { return Options{Cgroup: cgroup} },
	}
}

// get waits for the driver of a host.
func (h *Host) get(ctx context.Context) (*Driver, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if d, err := h.Get(lefty()); err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	return nil, ctx.Err()
}

func targetIn(root string) string { return filepath.Join(root, "pods/u/volumes/t/pv") }

func life(root string) error {
	ctx := context.Background()
	h := hostAt(root, os.Getenv(cgroupMode))
	go func() { _ = h.Run(ctx) }()
	d, err := h.get(ctx)
	if err != nil {
		return err
	}
	if _, err := d.Mount(ctx, targetIn(root), "", decide.Volume{}); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "mounted"), nil, 0o600); err != nil {
		return err
	}
	select {}
}

// writes is what the driver starts to write to the volume: it notes when another
// one does already.
const writes = `#!/bin/sh
exec 9>"$1/one"
flock -n 9 || echo two >>"$1/overlaps"
echo $$ >>"$1/daemons"
exec sleep 1000
`

// lives begins a life of a host, kills it when so, and waits for its end.
func lives(t *testing.T, root, cgroup string, so func() bool) {
	t.Helper()
	host := exec.CommandContext(t.Context(), os.Args[0])
	host.Env = append(os.Environ(), lifeMode+"="+root, cgroupMode+"="+cgroup)
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the time to kill the host has come", so)
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
}

// cgroupOf makes a cgroup for a test, "" where there is none to be had.
func cgroupOf(t *testing.T, driver string) string {
	t.Helper()
	name := decide.Name{Vendor: "volplane.test", Driver: driver + strconv.Itoa(os.Getpid())}
	dir, err := Cgroup(name)
	if err != nil && !errors.Is(err, ErrNoCgroup) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if dir != "" {
			eventually(t, "the cgroup can be removed", func() bool {
				calls, _ := filepath.Glob(filepath.Join(dir, "*-*"))
				for _, call := range calls {
					_ = unix.Rmdir(call)
				}
				return unix.Rmdir(dir) == nil
			})
			_ = unix.Rmdir(filepath.Dir(dir)) // unless others are there
		}
	})
	return dir
}

// TestNeverTwoWriters: what a call of a killed host has started, in its session,
// in another one or without our environment, ends before the next host calls the
// driver again; what a call left behind that had ended lives on.
func TestNeverTwoWriters(t *testing.T) {
	for name, how := range map[string]string{
		"child": "", "session": "setsid ", "environment": "env -i ",
	} {
		for _, grouped := range []bool{true, false} {
			t.Run(name+" "+strconv.FormatBool(grouped), func(t *testing.T) {
				t.Parallel()
				cgroup := ""
				if grouped {
					cgroup = cgroupOf(t, name)
				}
				neverTwo(t, how, cgroup)
			})
		}
	}
}

func neverTwo(t *testing.T, how, cgroup string) {
	t.Helper()
	root := place(t)
	b := bench{root: root}
	install(t, filepath.Join(root, "writer"), writes)
	install(t, filepath.Join(root, "plugins/example.com~t/t"), script(root, ready+`
mount) `+how+`"$root/writer" "$root" & if [ -e "$root/calm" ]; then while ! grep -q $! "$root/daemons"; do :; done; `+mountsOne+`; else wait; fi ;;
`+unmounts))
	const kills = 3
	for n := range kills {
		lives(t, root, cgroup, func() bool { return len(b.lines("daemons")) == n+1 })
	}
	if err := os.WriteFile(filepath.Join(root, "calm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lives(t, root, cgroup, func() bool {
		_, err := os.Stat(filepath.Join(root, "mounted"))
		return err == nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := hostAt(root, cgroup)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	d, err := h.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if overlaps := b.lines("overlaps"); len(overlaps) > 0 {
		t.Errorf("two writers, %d times", len(overlaps))
	}
	if now := slices.DeleteFunc(b.lines("daemons"), func(pid string) bool { return !running(pid) }); len(now) != 1 {
		t.Errorf("writers that live: %v, want the one of the call that had ended", now)
	}
	if _, err := d.Unmount(ctx, targetIn(root)); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "state/calls/*/*")); len(left) > 0 {
		t.Errorf("written down still: %v", left)
	}
}

// TestWhatIsLeftHangs: while something that a killed host's call has started does
// not end, nothing else is called for the same directory, and all else is.
func TestWhatIsLeftHangs(t *testing.T) {
	t.Parallel()
	root := place(t)
	install(t, filepath.Join(root, "plugins/example.com~t/t"), script(root, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts))
	h := hostAt(root, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	end := make(chan struct{})
	s := h.slot(lefty().Dir())
	hangs := task{key: lefty().String() + " directory " + targetIn(root), what: "end what is left", do: func(_ context.Context, overdue func()) (any, error) {
		overdue()
		<-end
		return nil, nil
	}}
	if _, err := s.calls.join(ctx, hangs); !errors.Is(err, errOverdue) {
		t.Fatal(err)
	}
	h.forgetGone(time.Now())
	go func() { _ = h.Run(ctx) }()
	d, err := h.get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Mount(ctx, targetIn(root), "", decide.Volume{}); !errors.Is(err, errOverdue) {
		t.Errorf("beside what hangs: %v", err)
	}
	if _, err := d.Mount(ctx, targetIn(root)+"2", "", decide.Volume{}); err != nil {
		t.Errorf("another directory: %v", err)
	}
	close(end)
	s.calls.Wait()
	if _, err := d.Mount(ctx, targetIn(root), "", decide.Volume{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestTracesThatAreNone: what is damaged, or of an earlier boot, ends nobody.
func TestTracesThatAreNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"half.json": `{"boot":"`, "none.json": ``, "draft.json.tmp": `{}`, "list.json": `[]`,
		"earlier.json": `{"boot":"x","key":"k","session":1}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := readTraces(dir)
	left, _ := os.ReadDir(dir)
	if err != nil || len(all) > 0 || len(left) > 0 {
		t.Errorf("%v, %v, left %v", all, err, left)
	}
}

// TestSessionsOfOthers: the number of a session may be another one's by now.
func TestSessionsOfOthers(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) }()
	p, ok := processOf(cmd.Process.Pid)
	if !ok {
		t.Fatal("it does not live")
	}
	for began, want := range map[uint64]bool{p.began: true, p.began - 1: false, p.began + 1: false} {
		if got := (&trace{Session: p.pid, Began: began, path: "x"}).has(p); got != want {
			t.Errorf("a call that began at %d has what began at %d: %v", began, p.began, got)
		}
	}
}

// TestGroupOfAKilledLeader: what something else than we killed leads nobody, and
// the next call does not begin beside its children.
func TestGroupOfAKilledLeader(t *testing.T) {
	t.Parallel()
	b := newBench(t, ready+`
mount) sleep 1000 & echo $! >>"$root/daemons"; kill -9 $$ ;;
`, options(time.Minute))
	if _, err := b.Mount(t.Context(), b.dir(), "", decide.Volume{}); err == nil {
		t.Error("no error")
	}
	if pid := strings.Join(b.lines("daemons"), ""); running(pid) {
		t.Errorf("%s lives", pid)
	}
}
