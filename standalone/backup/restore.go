package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/datadir"
	"volplane.dev/volplane/standalone/etcd"
)

// Names in a data directory.
const (
	// restoring is the folder where a restore makes everything.
	restoring = "restoring"
	// replaced begins the names of folders with what a restore has replaced.
	replaced = "replaced-"
	// pending is a file that says from which backup the directory was restored, until
	// the API says so.
	pending = "restored"
)

// Restored is what a restore leaves.
type Restored struct {
	Manifest
	// From is the file; Replaced the folder with what was there before, "" for
	// nothing.
	From, Replaced string
}

// Restore makes the objects and keys of a data directory those of a backup. No
// control plane may be running over it; the directory may be damaged, empty or
// not exist. What is replaced is kept. Volumes, what nodes have written down of them,
// and the files of the drivers that the host runs stay as they are. It may be repeated, also after a crash.
func Restore(file, dataDir string, now time.Time) (r Restored, err error) {
	if file, err = filepath.Abs(file); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	dir, err := datadir.Open(dataDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	r.From = file
	work := filepath.Join(dir.Path, restoring)
	if err := os.RemoveAll(work); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if r.Manifest, err = unpack(file, work); err != nil {
		return r, errors.Join(err, os.RemoveAll(work))
	}
	if err := prepare(work); err != nil {
		return r, errors.Join(err, os.RemoveAll(work))
	}
	// From here on the control plane starts only as a restored one.
	if err := durable.WriteJSON(filepath.Join(dir.Path, pending), r); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	r.Replaced, err = exchange(dir.Path, work, filepath.Join(dir.Path, replaced+now.UTC().Format("20060102T150405Z")))
	return r, err
}

// prepare makes an etcd of the snapshot, and puts all of it on the disk.
func prepare(work string) error {
	snapshot := filepath.Join(work, snapshotName)
	if err := etcd.Restore(snapshot, filepath.Join(work, "etcd")); err != nil {
		return err
	}
	if _, err := etcd.Check(filepath.Join(work, "etcd")); err != nil {
		return err
	}
	if err := os.Remove(snapshot); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	f, err := os.Open(work)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// exchange puts the folders in work in the place of those in dir, which go to
// old. It returns old, or "" when there was nothing.
func exchange(dir, work, old string) (string, error) {
	if err := addDrivers(dir, work); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(work)
	if err != nil {
		return "", fmt.Errorf("restore: %w", err)
	}
	moved := ""
	for _, e := range entries {
		if err := os.MkdirAll(old, 0o700); err != nil {
			return "", fmt.Errorf("restore: %w", err)
		}
		err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(old, e.Name()))
		if err == nil && e.Name() != "format" {
			moved = old
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Rename(filepath.Join(work, e.Name()), filepath.Join(dir, e.Name()))
		}
		if err != nil {
			return "", fmt.Errorf("restore: %w; run it again", err)
		}
	}
	if moved == "" {
		_ = os.RemoveAll(old) // a format that was made a moment ago
	}
	return moved, errors.Join(os.Remove(work), durable.Sync(dir))
}

// Pending returns from which backup a data directory was restored, as long as
// its API does not say so.
func Pending(dataDir string) (r Restored, is bool, err error) {
	err = durable.ReadJSON(filepath.Join(dataDir, pending), maxFile, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	return r, err == nil, err
}

// Settle says that the API says it now.
func Settle(dataDir string) error { return durable.Remove(filepath.Join(dataDir, pending)) }
