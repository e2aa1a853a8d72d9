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

// tracesDir returns the directory of the traces of a driver's calls.
func (h *Host) tracesDir(dir string) string {
	if h.StateDir == "" {
		return ""
	}
	return filepath.Join(h.StateDir, "calls", dir)
}

// endUnfinished ends the processes of calls that an earlier host process has started and not seen end,
// because it was killed. No driver is called before that. If a process hangs in the kernel, calls
// for the same object wait for it.
func (h *Host) endUnfinished(ctx context.Context) {
	entries, err := os.ReadDir(h.tracesDir(""))
	if h.StateDir == "" || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		h.Log.Warn("traces of FlexVolume drivers' unfinished calls cannot be read", "dir", h.tracesDir(""), "err", err)
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

// sweep removes the empty cgroups of calls that have ended.
func (h *Host) sweep(s *slot) {
	if cgroup := h.options(s).Cgroup; cgroup != "" {
		driver.SweepCgroups(cgroup, h.tracesDir(s.dir))
	}
}
