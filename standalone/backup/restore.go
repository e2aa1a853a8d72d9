package backup

import (
	"context"
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
	"volplane.dev/volplane/standalone/external"
)

// Names in a data directory.
const (
	// restoring is the folder where a restore makes everything.
	restoring = "restoring"
	// replaced begins the names of directories with the content that a restore has replaced.
	replaced = "replaced-"
	// pending is a file that says from which backup the directory was restored, until the API shows it.
	pending = "restored"
)

// Restored is what a restore leaves.
type Restored struct {
	Manifest
	// From is the file; Replaced is the directory with the former content, "" if there was none.
	From, Replaced string
	// Recorded is the position that the store had reached, if a start has found a store that lacks it; zero after a
	// restore by an administrator.
	Recorded etcd.Position
}

// Restore makes the objects and keys of a data directory those of a backup. No control plane may be running over it;
// the directory may be damaged, empty or not exist. The replaced content is kept. Volumes, the journals of nodes, and
// the files of the drivers that the host runs stay unchanged. It may be repeated, also after a crash. The objects go to
// a store that others run if one is named or the directory uses one; its prefix must be empty.
func Restore(ctx context.Context, file, dataDir string, to external.Options, now time.Time) (r Restored, err error) {
	if file, err = filepath.Abs(file); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	dir, err := datadir.Open(dataDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if to.IsZero() {
		if to, err = external.Recorded(dir.Path); err != nil {
			return r, err
		}
	}
	return restore(ctx, Restored{From: file}, dir.Path, to, now)
}

// Older is the reason of a backup of a store that a start has found in the place of a newer one.
const Older = "older"

// RestoreFound does with the store in a data directory what a restore does with a backup, because the store lacks
// objects according to its record: it was replaced by an older or a different one. The caller holds the directory. It
// may be repeated.
func RestoreFound(ctx context.Context, o Options, recorded etcd.Position, now time.Time) (r Restored, err error) {
	o.Reason = Older
	r = Restored{From: Name(o.DataDir, o.Reason, now), Recorded: recorded}
	if err := KeepStopped(ctx, o, r.From); err != nil {
		return r, err
	}
	return restore(ctx, r, o.DataDir, external.Options{}, now)
}

// Found records that a start has found a store that lacks data according to the record, in the place of the last one,
// as a restore records its backup.
func Found(dataDir, name string, recorded etcd.Position, version string, now time.Time) error {
	r := Restored{Manifest: Manifest{Made: now.UTC(), Version: version}, From: name, Recorded: recorded}
	return durable.WriteJSON(filepath.Join(dataDir, pending), r)
}

// restore gives a data directory the content of the backup r.From.
func restore(
	ctx context.Context, r Restored, dir string, to external.Options, now time.Time,
) (_ Restored, err error) {
	var work string
	if work, r.Manifest, err = stage(r.From, dir); err != nil {
		return r, err
	}
	home, old := filepath.Join(work, "etcd"), filepath.Join(dir, replaced+now.UTC().Format(layout))
	if !to.IsZero() {
		if _, err := fill(ctx, home, work, to); err != nil {
			return r, fmt.Errorf("restore: %w", err)
		}
	}
	// From here on the control plane starts only as a restored one.
	if err := durable.WriteJSON(filepath.Join(dir, pending), r); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if !to.IsZero() {
		if err := exchangeStore(dir, home, to, old); err != nil {
			return r, fmt.Errorf("restore: %w", err)
		}
	}
	r.Replaced, err = exchange(dir, work, old)
	return r, err
}

// stage unpacks a backup into a directory below a data directory, with an etcd whose revisions are higher than all that
// clients have seen. After an error the directory does not exist.
func stage(file, dir string) (work string, m Manifest, err error) {
	work = filepath.Join(dir, restoring)
	if err := os.RemoveAll(work); err != nil {
		return "", m, fmt.Errorf("restore: %w", err)
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", m, fmt.Errorf("restore: %w", err)
	}
	if m, err = unpack(file, work); err == nil {
		err = prepare(work, seen(dir))
	}
	if err != nil {
		return "", m, errors.Join(err, os.RemoveAll(work))
	}
	return work, m, nil
}

// exchangeStore replaces the store of a data directory by one that others run, which has the objects of the etcd in
// home.
func exchangeStore(dir, home string, to external.Options, old string) error {
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	if err := useStore(dir, to); err != nil {
		return err
	}
	return setAside(dir, old)
}

// seen returns the last revision of a data directory that clients are known to have seen.
func seen(dir string) int64 {
	p, err := etcd.Recorded(filepath.Join(dir, datadir.Record))
	if err != nil {
		return 0 // unreadable data must not prevent the repair
	}
	return p.Revision
}

// prepare makes an etcd from the snapshot, whose revisions are higher than one that clients have seen, and syncs all of
// it.
func prepare(work string, seen int64) error {
	snapshot := filepath.Join(work, snapshotName)
	if err := etcd.Restore(snapshot, filepath.Join(work, "etcd"), seen); err != nil {
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
		_ = os.RemoveAll(old) // a format that was created a moment ago
	}
	return moved, errors.Join(os.Remove(work), durable.Sync(dir))
}

// Pending returns from which backup a data directory was restored, as long as its API does not show it.
func Pending(dataDir string) (r Restored, is bool, err error) {
	err = durable.ReadJSON(filepath.Join(dataDir, pending), maxFile, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	return r, err == nil, err
}

// Settle says that the API says it now.
func Settle(dataDir string) error { return durable.Remove(filepath.Join(dataDir, pending)) }
