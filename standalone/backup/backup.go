package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/external"
)

// draft is the prefix of temporary names.
const draft = ".draft-"

// Options configure a backup.
type Options struct {
	DataDir string
	// Version is the version of this program. Reason is why the backup is made.
	Version, Reason string
}

// Save writes a backup of a data directory to a file, whether the control plane is
// running or not. An existing file is replaced.
func Save(ctx context.Context, o Options, file string) (m Manifest, err error) {
	if _, err := os.Stat(filepath.Join(o.DataDir, "format")); err != nil {
		return m, fmt.Errorf("no control plane was ever started with data directory %s: %w; set its directory with "+
			"--data-dir", o.DataDir, err)
	}
	dir, err := datadir.Open(o.DataDir)
	if errors.Is(err, datadir.ErrInUse) {
		return SaveRunning(ctx, o, file)
	}
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if at, err := external.Recorded(o.DataDir); err != nil || !at.IsZero() {
		return SaveRunning(ctx, o, file) // a store that others run is read in the same way
	}
	found, err := etcd.Check(o.etcd())
	if err == nil && !found.Exists {
		err = fmt.Errorf("%s holds no objects", o.etcd())
	}
	if err != nil {
		return m, err
	}
	return saveStopped(ctx, o, file)
}

func (o Options) etcd() string { return filepath.Join(o.DataDir, "etcd") }

// saveStopped saves a control plane that is not running. It starts etcd with a copy of the
// data, so that nothing is changed. The caller has locked the directory.
func saveStopped(ctx context.Context, o Options, file string) (m Manifest, err error) {
	// The copy is not made next to the file, because the length of a socket's name is limited.
	work, err := os.MkdirTemp(o.DataDir, draft)
	if err != nil {
		return m, o.fail(file, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	home := filepath.Join(work, "etcd")
	if err := copyTree(o.etcd(), home); err != nil {
		return m, o.fail(file, err)
	}
	s, err := etcd.Start(ctx, etcd.Options{Dir: home, NoSync: true})
	if err != nil {
		return m, o.fail(file, err)
	}
	defer s.Stop()
	m, err = save(ctx, o, home, file)
	return m, o.fail(file, err)
}

// SaveRunning saves a running control plane.
func SaveRunning(ctx context.Context, o Options, file string) (m Manifest, err error) {
	at, err := external.Recorded(o.DataDir)
	if err == nil && at.IsZero() {
		m, err = save(ctx, o, o.etcd(), file)
	} else if err == nil {
		m, err = saveExternal(ctx, o, at, file)
	}
	return m, o.fail(file, err)
}

func (o Options) fail(file string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("back up %s to %s: %w", o.DataDir, file, err)
}

func save(ctx context.Context, o Options, home, file string) (m Manifest, err error) {
	work, err := os.MkdirTemp(filepath.Dir(file), draft)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	snapshot := filepath.Join(work, snapshotName)
	if err := etcd.Save(ctx, etcd.Socket(home), snapshot); err != nil {
		return m, err
	}
	m = Manifest{Made: time.Now().UTC().Truncate(time.Second), Version: o.Version, Reason: o.Reason}
	if m.Keys, m.Revision, err = etcd.Verify(snapshot); err != nil {
		return m, err
	}
	dir, err := os.OpenRoot(o.DataDir)
	if err != nil {
		return m, err
	}
	defer dir.Close()
	whole := filepath.Join(work, "whole")
	f, err := os.OpenFile(whole, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return m, err
	}
	err = write(f, dir, snapshot, m)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return m, err
	}
	if err := os.Rename(whole, file); err != nil {
		return m, err
	}
	return m, durable.Sync(filepath.Dir(file))
}

// Examine returns the manifest of a backup made now, and an error if the data are
// damaged. It changes nothing.
func Examine(ctx context.Context, o Options) (m Manifest, err error) {
	work, err := os.MkdirTemp("", draft)
	if err != nil {
		return m, fmt.Errorf("check %s: %w", o.DataDir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	return Save(ctx, o, filepath.Join(work, "backup"))
}

// Check verifies a backup and returns its manifest. It needs as much free space next to the file as the unpacked backup
// takes.
func Check(file string) (m Manifest, err error) {
	work, err := os.MkdirTemp(filepath.Dir(file), draft)
	if err != nil {
		return m, fmt.Errorf("check %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	return unpack(file, work)
}

// unpack unpacks a backup into an empty directory, and refuses a damaged one.
func unpack(file, into string) (m Manifest, err error) {
	f, err := os.Open(file)
	if err != nil {
		return m, fmt.Errorf("open backup: %w", err)
	}
	defer f.Close()
	root, err := os.OpenRoot(into)
	if err != nil {
		return m, fmt.Errorf("unpack %s: %w", file, err)
	}
	defer root.Close()
	if m, err = extract(f, root); err == nil {
		var keys int
		var revision int64
		if keys, revision, err = etcd.Verify(filepath.Join(into, snapshotName)); err == nil &&
			(keys != m.Keys || revision != m.Revision) {
			err = fmt.Errorf("%d keys at revision %d, the manifest says %d at %d", keys, revision, m.Keys, m.Revision)
		}
	}
	if errors.Is(err, ErrNewer) {
		return m, fmt.Errorf("%s: %w; use the program that created it", file, err)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrBroken, file, err)
	}
	return m, nil
}
