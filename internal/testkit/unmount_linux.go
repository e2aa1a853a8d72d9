package testkit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unmountLimit bounds the time in which a mount ceases to be in use.
const unmountLimit = 20 * time.Second

// Unmount unmounts a path. A process that another test is starting has the open files of this one until it executes
// its program, so the mount may be in use for a moment longer.
func Unmount(t testing.TB, path string) {
	t.Helper()
	Eventually(t, unmountLimit, func() string {
		err := unix.Unmount(path, 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Sprintf("unmount %s: %v", path, err)
		}
		if err != nil {
			t.Fatalf("unmount %s: %v", path, err)
		}
		return ""
	})
}
