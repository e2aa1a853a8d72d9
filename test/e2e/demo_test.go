package e2e

import (
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
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
		planetest.UnmountBelow(t, dir)
		_ = os.RemoveAll(dir)
	})
	seed := seeds.First(t)
	t.Logf("SEED=%d", seed)
	demo := exec.Command(bin, "demo")
	demo.Env = append(os.Environ(), "TMPDIR="+dir)
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the demo starts a process", func() bool { return len(othersOf(dir, demo.Process.Pid)) > 0 })
	moment := time.Duration(mathrand.New(mathrand.NewPCG(seed, 0)).Int64N(int64(4 * time.Second)))
	<-time.After(moment)
	_ = demo.Process.Kill()
	_ = demo.Wait()
	until(t, "the processes of the demo end", func() bool { return len(plane.ProcessesOf(dir)) == 0 })

	again := exec.Command(bin, "demo")
	again.Env = demo.Env
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("second demo: %v\n%s", err, out)
	}
}

// othersOf returns the processes, except one, that have dir on their command line.
func othersOf(dir string, without int) []int {
	return slices.DeleteFunc(plane.ProcessesOf(dir), func(pid int) bool { return pid == without })
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	testkit.Eventually(t, planetest.Patience, testkit.Unless(what, f))
}
