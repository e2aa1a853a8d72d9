package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// ErrDamaged is the error of damaged data of etcd: etcd would not start, or would start
// without data that it has confirmed.
var ErrDamaged = errors.New("damaged")

// lockLimit is how long the check waits while another process has the database open.
const lockLimit = 5 * time.Second

// Check says whether a directory has data of etcd. It returns ErrDamaged with the name
// of the file if etcd would not start with them, or would miss data that it has
// confirmed. Check changes nothing. etcd itself does not report such damage: with a
// truncated log it waits forever, and with a truncated database it crashes.
func Check(dir string) (exists bool, err error) {
	// A page of the mapped database that cannot be read is reported as damage instead
	// of a crash.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			exists, err = true, fmt.Errorf("%w: %s: %v", ErrDamaged, dir, p)
		}
	}()
	home := memberDir(dir)
	data, log := datadir.ToBackendFileName(home), datadir.ToWALDir(home)
	l, err := readLog(log)
	if err != nil {
		return true, err
	}
	info, err := os.Stat(data)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !l.exists:
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		return true, fmt.Errorf("%w: the database %s is missing, but its log exists", ErrDamaged, data)
	case err != nil:
		return true, fmt.Errorf("check etcd: %w", err)
	case info.Size() == 0 && !l.exists:
		return false, nil // made a moment before a kill; etcd begins it again
	}
	applied, err := readDatabase(data, info.Size())
	if err != nil {
		return true, err
	}
	if !l.exists {
		return checkNoLog(log, applied)
	}
	return true, l.check(data, log, applied)
}

// checkNoLog recognizes a first start that was killed: the database is created before
// its log.
func checkNoLog(log string, applied uint64) (exists bool, err error) {
	if applied == 0 {
		return false, nil
	}
	return true, fmt.Errorf("%w: the log %s is missing, but its database exists", ErrDamaged, log)
}

func memberDir(dir string) string { return filepath.Join(dir, "member") }

// readDatabase returns the last entry of the log that is in the database, after reading
// every page that is in use.
func readDatabase(path string, size int64) (applied uint64, err error) {
	if size == 0 {
		return 0, fmt.Errorf("%w: %s is empty", ErrDamaged, path)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockLimit})
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, bolterrors.ErrTimeout) {
			return 0, fmt.Errorf("check etcd: open %s: %w", path, err)
		}
		return 0, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("%w: %s is %d bytes long, %d are in use", ErrDamaged, path, size, tx.Size())
		}
		if err := tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walk(b) }); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
		}
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if v := meta.Get(schema.MetaConsistentIndexKeyName); len(v) == 8 {
				applied = binary.BigEndian.Uint64(v)
			}
		}
		return nil
	})
	return applied, err
}

// walk reads every entry, in order to detect damaged pages.
func walk(b *bolt.Bucket) error {
	return b.ForEach(func(k, _ []byte) error {
		if len(k) == 0 {
			return errors.New("an entry has no key")
		}
		return nil
	})
}
