package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/driver"
)

// The last good version of each driver is copied to StateDir/kept/DIR/HASH/DRIVER; drivers use the
// last component of their path. A hard link would be cheaper, but a write to the driver's file
// would change it, too.

// capabilitiesFile has the capabilities of the kept executable beside it. No driver has such a
// name.
const capabilitiesFile = ".capabilities.json"

// KeptDir returns the directory in which a host with a StateDir keeps copies of a driver, each as
// HASH/DRIVER.
func KeptDir(stateDir string, name decide.Name) string {
	return filepath.Join(stateDir, "kept", name.Dir())
}

func (h *Host) keptDir(dir string) string { return filepath.Join(h.StateDir, "kept", dir) }

// keep copies the executable of a driver that is ready.
func (h *Host) keep(d *driver.Driver, o driver.Options) (*driver.Driver, error) {
	if h.StateDir == "" {
		return nil, nil
	}
	all := h.keptDir(d.Name.Dir())
	dir := filepath.Join(all, d.Hash)
	if kept, err := openKept(d.Name, dir, o); err == nil {
		return kept, nil
	}
	if err := os.MkdirAll(all, 0o700); err != nil {
		return nil, fmt.Errorf("keep driver: %w", err)
	}
	fresh, err := os.MkdirTemp(all, ".new-")
	if err != nil {
		return nil, fmt.Errorf("keep driver: %w", err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	said, err := json.Marshal(d.Capabilities)
	if err == nil {
		err = os.WriteFile(filepath.Join(fresh, capabilitiesFile), said, 0o600)
	}
	if err == nil {
		err = copyExecutable(d.Path, filepath.Join(fresh, d.Name.Driver))
	}
	if err == nil {
		// The existing directory does not hold what its name says.
		err = errors.Join(os.RemoveAll(dir), os.Rename(fresh, dir))
	}
	if err != nil {
		return nil, fmt.Errorf("keep driver: %w", err)
	}
	return openKept(d.Name, dir, o)
}

// copyExecutable copies a file.
func copyExecutable(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700) //nolint:gosec // it must be executable
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// openKept returns the version in a directory, if its hash is the name of the directory: a crash
// may have truncated the copy, or the file may have changed while it was copied.
func openKept(name decide.Name, dir string, o driver.Options) (*driver.Driver, error) {
	path := filepath.Join(dir, name.Driver)
	stored, err := os.ReadFile(filepath.Join(dir, capabilitiesFile))
	if err != nil {
		return nil, err
	}
	var capabilities decide.Capabilities
	if err := json.Unmarshal(stored, &capabilities); err != nil {
		return nil, err
	}
	d, err := driver.Known(name, path, capabilities, o)
	if err == nil && d.Hash != filepath.Base(dir) {
		return nil, fmt.Errorf("kept driver %s has the hash %s", path, d.Hash)
	}
	return d, err
}

// findKept looks for a version that an earlier process has kept. The caller holds mu.
func (h *Host) findKept(s *slot) {
	if s.searched || !s.valid || h.StateDir == "" {
		return
	}
	s.searched = true
	entries, err := os.ReadDir(h.keptDir(s.dir))
	if err != nil {
		return
	}
	age := func(e fs.DirEntry) int64 {
		info, err := e.Info()
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return int(min(1, max(-1, age(b)-age(a)))) })
	for _, e := range entries {
		d, err := openKept(s.name, filepath.Join(h.keptDir(s.dir), e.Name()), h.options(s))
		if err == nil {
			s.kept = d
			return
		}
	}
}

// commitKept syncs the kept version to disk and removes older ones.
func (h *Host) commitKept(s *slot, kept *driver.Driver) {
	if kept == nil {
		return
	}
	all := h.keptDir(s.dir)
	for _, path := range []string{kept.Path, filepath.Dir(kept.Path), all} {
		_ = durable.Sync(path)
	}
	entries, err := os.ReadDir(all)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() != kept.Hash {
			_ = os.RemoveAll(filepath.Join(all, e.Name()))
		}
	}
}

// forgetUnused removes kept versions of drivers that are neither installed nor in use.
func (h *Host) forgetUnused() {
	if h.StateDir == "" {
		return
	}
	entries, err := os.ReadDir(filepath.Join(h.StateDir, "kept"))
	if err != nil {
		return
	}
	h.notifyMu.Lock()
	defer h.notifyMu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		s := h.slots[e.Name()]
		if s == nil || s.isUnused() {
			_ = os.RemoveAll(h.keptDir(e.Name()))
		}
	}
}

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
