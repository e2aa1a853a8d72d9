package mount

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatch: a watch reports its start, a mount and an unmount, and ends with its context.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1000), make(chan error, 1)
	go func() { ended <- Watch(ctx, time.Millisecond, func() { changed <- struct{}{} }) }()
	for _, change := range []func() error{
		func() error { return nil }, // it has begun
		func() error { return unix.Mount("none", dir, "tmpfs", 0, "") },
		func() error { return unix.Unmount(dir, 0) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatal("no notification of a change")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
