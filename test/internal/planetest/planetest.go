package planetest

import (
	"os"
	"testing"
	"time"

	"volplane.dev/volplane/test/internal/plane"
)

// Patience is how long a volume may take to appear after a failure on a busy machine: pauses between attempts add up to
// some seconds.
const Patience = 3 * time.Minute

// LooksOften is the flag of `volplaned up` with which the node agent checks mounted volumes every two seconds; the
// default is every minute.
const LooksOften = "--volume-stats-agg-period=2s"

// Start starts a control plane for a test, with flags of `volplaned up`. Its directory stays if the test fails.
func Start(t testing.TB, flags ...string) *plane.Plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	p, err := plane.Start(t.Context(), dir, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Stop(); !t.Failed() {
			_ = os.RemoveAll(dir)
			_ = os.Remove(dir + ".log")
		}
	})
	return p
}

// UnmountBelow removes the mounts below a directory of a process that was killed, and its loop devices.
func UnmountBelow(t testing.TB, dir string) {
	t.Helper()
	if err := plane.UnmountBelow(dir); err != nil {
		t.Error(err)
	}
}
