package driver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestWhatIsLeftHangs: while something that a killed host's call has started does
// not end, nothing else is called for the same directory, and all else is.
func TestWhatIsLeftHangs(t *testing.T) {
	t.Parallel()
	calls, ctx := &Calls{}, t.Context()
	b := newBench(t, ready+"\nmount) "+mountsOne+" ;;\n"+unmounts, Options{Calls: calls})
	end := make(chan struct{})
	hangs := task{
		key: b.Name.String() + " directory " + b.dir(), what: "end what is left",
		do: func(_ context.Context, overdue func()) (any, error) {
			overdue()
			<-end
			return nil, nil
		},
	}
	if _, err := calls.join(ctx, hangs); !errors.Is(err, errOverdue) {
		t.Fatal(err)
	}
	if calls.Idle() {
		t.Error("nothing is under way")
	}
	if _, err := b.Mount(ctx, b.dir(), "", decide.Volume{}); !errors.Is(err, errOverdue) {
		t.Errorf("beside what hangs: %v", err)
	}
	if _, err := b.Mount(ctx, b.dir()+"2", "", decide.Volume{}); err != nil {
		t.Errorf("another directory: %v", err)
	}
	close(end)
	calls.Wait()
	if _, err := b.Mount(ctx, b.dir(), "", decide.Volume{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if !calls.Idle() {
		t.Error("something is under way")
	}
}

// TestTracesThatAreNone: a trace that is damaged, or of an earlier boot, ends no process.
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
	for began, want := range map[uint64]bool{p.started: true, p.started - 1: false, p.started + 1: false} {
		if got := (&trace{Session: p.pid, Started: began, path: "x"}).owns(p); got != want {
			t.Errorf("a call that began at %d has what began at %d: %v", began, p.started, got)
		}
	}
}

// TestGroupOfAKilledLeader: if the leader was not killed by the host, its children are
// ended too, so that the next call does not run beside them.
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
