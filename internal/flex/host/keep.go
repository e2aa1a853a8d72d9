package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/flex/driver"
)

// The last good version of each driver is kept as a copy in
// StateDir/kept/DIR/HASH/DRIVER, because drivers look at the last component of
// their path. A hard link would cost nothing, but whoever writes into the
// driver's file would write into what is kept.

// capabilitiesFile lies beside a kept executable and has what its init said. No
// driver has such a name.
const capabilitiesFile = ".capabilities.json"

// KeptDir returns where a host with a StateDir keeps copies of a driver, each as
// HASH/DRIVER below it.
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
		// What lies there is not what its name says.
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
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700) //nolint:gosec // it is there to be executed
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// openKept returns the version in a directory, if it is the one that the
// directory's name says: a crash may have cut it, and while it was copied it may
// have become another one.
func openKept(name decide.Name, dir string, o driver.Options) (*driver.Driver, error) {
	path := filepath.Join(dir, name.Driver)
	said, err := os.ReadFile(filepath.Join(dir, capabilitiesFile))
	if err != nil {
		return nil, err
	}
	var can decide.Capabilities
	if err := json.Unmarshal(said, &can); err != nil {
		return nil, err
	}
	d, err := driver.Known(name, path, can, o)
	if err == nil && d.Hash != filepath.Base(dir) {
		return nil, fmt.Errorf("kept driver %s has the hash %s", path, d.Hash)
	}
	return d, err
}

// findKept looks for a version that was kept before this host was started. The
// caller holds mu.
func (h *Host) findKept(s *slot) {
	if s.sought || !s.valid || h.StateDir == "" {
		return
	}
	s.sought = true
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

// settle makes what is kept outlive a crash and forgets the versions before.
func (h *Host) settle(s *slot, kept *driver.Driver) {
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

// forgetUnused takes away what is kept of drivers that are neither there nor in
// use.
func (h *Host) forgetUnused() {
	if h.StateDir == "" {
		return
	}
	entries, err := os.ReadDir(filepath.Join(h.StateDir, "kept"))
	if err != nil {
		return
	}
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		s := h.slots[e.Name()]
		if s == nil || s.idle() {
			_ = os.RemoveAll(h.keptDir(e.Name()))
		}
	}
}
