package durable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
)

// TestLock: one at a time has it, also of those of one process, and its file may be removed by who has it.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := durable.TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := durable.TryLock(path); !errors.Is(err, durable.ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("locked twice: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := durable.Lock(ended, path); f != nil || !errors.Is(err, durable.ErrLocked) {
		t.Errorf("who does not wait: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := durable.Lock(t.Context(), path)
		if err == nil {
			if _, third := durable.TryLock(path); !errors.Is(third, durable.ErrLocked) {
				err = fmt.Errorf("who waited does not have it: %w", third)
			}
			err = errors.Join(err, second.Close())
		}
		got <- err
	}()
	if err := errors.Join(os.Remove(path), first.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestLockOfAnotherFile: a lock on a file that has been removed excludes no other process.
func TestLockOfAnotherFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.TryLock(path); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link was followed: %v", err)
	}
	if f, err := durable.Lock(t.Context(), filepath.Join(dir, "absent", "lock")); f != nil ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestBoot(t *testing.T) {
	first, err := durable.Boot()
	again, _ := durable.Boot()
	if err != nil || len(first) != len("9f1e5205-cf50-435a-ac89-ff465c6f980f") || first != again {
		t.Errorf("%q, %q, %v", first, again, err)
	}
}
