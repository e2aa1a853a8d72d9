package supervise

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// testCgroup makes a cgroup with a process in it and one in a cgroup below it, and returns its directory.
func testCgroup(t *testing.T) string {
	t.Helper()
	dir, err := findCgroups(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all := newWatches()
		defer all.close()
		if err := errors.Join(all.killCgroup(context.Background(), dir), removeCgroup(dir), removeCgroup(dir)); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{dir, below} {
		cmd := exec.Command("/bin/sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if err := enter(dir, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKillCgroup(t *testing.T) {
	t.Parallel()
	all := newWatches()
	defer all.close()
	for name, kill := range map[string]func(context.Context, string) error{
		"at once": all.killCgroup, "one by one": killEach,
	} {
		t.Run(name, func(t *testing.T) {
			dir := testCgroup(t)
			if n := len(processesOf(dir)); n != 2 || !populated(dir) {
				t.Fatalf("%d processes, populated %v", n, populated(dir))
			}
			if err := removeCgroup(dir); err == nil {
				t.Error("a cgroup was removed in which processes live")
			}
			if err := kill(t.Context(), dir); err != nil || populated(dir) {
				t.Errorf("%v, populated %v", err, populated(dir))
			}
		})
	}
}

// TestEmptiedEnds: a wait for a cgroup that does not become empty ends with its context.
func TestEmptiedEnds(t *testing.T) {
	t.Parallel()
	all := newWatches()
	defer all.close()
	dir := testCgroup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := all.emptied(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// So does a wait on a host without inotify.
	w := (&watches{}).watch()
	w.set(1, dir)
	if err := w.next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestMissingCgroup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	all := newWatches()
	defer all.close()
	err := errors.Join(all.killCgroup(t.Context(), dir), removeCgroup(dir), all.emptied(t.Context(), dir))
	if err != nil {
		t.Error(err)
	}
	// No files are created in a directory that is not a cgroup.
	plain := t.TempDir()
	if err := enter(plain, os.Getpid()); err == nil {
		t.Error("a process has entered what is no cgroup")
	}
	if entries, err := os.ReadDir(plain); len(entries) != 0 || err != nil {
		t.Errorf("%v, %v", entries, err)
	}
}
