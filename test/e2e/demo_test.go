package e2e

import (
	"bytes"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/seeds"
)

// TestDemoIsKilled: the demo is killed at a random moment. The processes that it started end with it, and a
// second demo succeeds.
func TestDemoIsKilled(t *testing.T) {
	t.Parallel()
	bin, err := filepath.Abs("../../bin/volplane")
	if err != nil {
		t.Fatal(err)
	}
	// Names of sockets are short, so the directory's is too.
	dir, err := os.MkdirTemp("", "d-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmountBelow(t, dir)
		_ = os.RemoveAll(dir)
	})
	seed := seeds.First(t)
	t.Logf("SEED=%d", seed)
	demo := exec.Command(bin, "demo")
	demo.Env = append(os.Environ(), "TMPDIR="+dir)
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the demo starts a process", func() bool { return len(processesOf(dir, demo.Process.Pid)) > 0 })
	moment := time.Duration(mathrand.New(mathrand.NewPCG(seed, 0)).Int64N(int64(4 * time.Second)))
	<-time.After(moment)
	_ = demo.Process.Kill()
	_ = demo.Wait()
	until(t, "the processes of the demo end", func() bool { return len(processesOf(dir, 0)) == 0 })

	again := exec.Command(bin, "demo")
	again.Env = demo.Env
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("second demo: %v\n%s", err, out)
	}
}

// processesOf returns the living processes, except one, that have dir on their command line.
func processesOf(dir string, without int) []string {
	var out []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err == nil && bytes.Contains(line, []byte(dir)) && f != fmt.Sprintf("/proc/%d/cmdline", without) {
			out = append(out, f)
		}
	}
	return out
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	testkit.Eventually(t, patience, testkit.Unless(what, f))
}

// unmountBelow removes the mounts of a killed demo, the last first, and its loop devices.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	lines := strings.Split(string(table), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			if err := unix.Unmount(f[1], 0); err != nil {
				t.Errorf("unmount %s: %v", f[1], err)
			}
		}
	}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if backing, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(backing), dir+"/") {
			device := "/dev/" + strings.Split(f, "/")[3]
			out, err := exec.Command("losetup", "-d", device).CombinedOutput()
			// It may have gone by itself, a moment after its mount.
			if _, there := os.Stat(f); err != nil && there == nil {
				t.Errorf("detach %s: %v: %s", device, err, out)
			}
		}
	}
}
