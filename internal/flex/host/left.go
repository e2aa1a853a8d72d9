package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
)

// tracesDir is where a host writes down the calls of a driver.
func (h *Host) tracesDir(dir string) string {
	if h.StateDir == "" {
		return ""
	}
	return filepath.Join(h.StateDir, "calls", dir)
}

// endLeft ends what is left of calls that a host before this one began and of
// which it did not see the end, because it was killed. Until that is done no
// driver is called, and what hangs in the kernel keeps what it works on from
// being worked on by another call.
func (h *Host) endLeft(ctx context.Context) {
	entries, err := os.ReadDir(h.tracesDir(""))
	if h.StateDir == "" || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		h.Log.Warn("what is left of calls of FlexVolume drivers is not known", "dir", h.tracesDir(""), "err", err)
		return
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, e := range entries {
		if _, err := decide.ParseDir(e.Name()); err != nil || !e.IsDir() {
			continue
		}
		h.mu.Lock()
		s := h.slot(e.Name())
		h.mu.Unlock()
		h.sweep(s)
		wait.Go(func() { s.calls.EndLeft(ctx, s.label, h.tracesDir(s.dir), h.Log) })
	}
}

// sweep removes what calls that have ended left of cgroups.
func (h *Host) sweep(s *slot) {
	if cgroup := h.options(s).Cgroup; cgroup != "" {
		driver.SweepCgroups(cgroup, h.tracesDir(s.dir))
	}
}
