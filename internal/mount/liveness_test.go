package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// fuse mounts a filesystem whose server is this process and never answers; the
// returned function ends the server.
func fuse(t *testing.T, target string) (die func()) {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", target, "fuse", 0,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev.Fd())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = dev.Close()
		_ = unix.Unmount(target, unix.MNT_DETACH)
	})
	return func() { _ = dev.Close() }
}

// TestDead: a filesystem is dead when its server is, but not while it merely does not respond, which costs one query of
// the kernel.
func TestDead(t *testing.T) {
	target := t.TempDir()
	die := fuse(t, target)
	var l Liveness
	short, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if l.Dead(short, target) {
			t.Error("what does not answer is taken for dead")
		}
	}
	if n := len(l.pending); n != 1 {
		t.Errorf("%d questions are open", n)
	}
	die()
	// The open question may be answered by the server's death itself.
	for !l.Dead(t.Context(), target) {
		if t.Context().Err() != nil {
			t.Fatal("never dead")
		}
	}
	if l.Dead(t.Context(), t.TempDir()) {
		t.Error("a directory is dead")
	}
	if err := Detach(target); err != nil {
		t.Fatal(err)
	}
	if _, mounted, err := At(target); err != nil || mounted {
		t.Errorf("still mounted, %v", err)
	}
}

// TestDetachTakesWhatIsBusy, which Unmount does not.
func TestDetachTakesWhatIsBusy(t *testing.T) {
	target := t.TempDir()
	if err := unix.Mount("none", target, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	busy, err := os.Create(target + "/open")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := Unmount(target); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount of what is busy: %v", err)
	}
	for range 2 {
		if err := Detach(target); err != nil {
			t.Fatal(err)
		}
	}
}
