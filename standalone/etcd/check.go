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

// ErrDamaged says that what etcd has kept is not whole: it would not start, or
// start without what it has confirmed.
var ErrDamaged = errors.New("damaged")

// lockLimit is how long the check waits for another process that has the
// database open.
const lockLimit = 5 * time.Second

// Check says whether there is an etcd in a directory, and whether it would
// start and know all that it has confirmed; if not, the error is ErrDamaged and
// names the file. It changes nothing. etcd itself finds out too late: it waits
// for ever behind a log that is too short, and dies of a database that is.
func Check(dir string) (exists bool, err error) {
	// A page of the mapped database that cannot be read is told like any other
	// damage, it does not end the process.
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
		return true, fmt.Errorf("%w: the database %s is missing, its log is there", ErrDamaged, data)
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

// checkNoLog knows a first start that was killed: the database is made before
// its log.
func checkNoLog(log string, applied uint64) (exists bool, err error) {
	if applied == 0 {
		return false, nil
	}
	return true, fmt.Errorf("%w: the log %s is missing, its database is there", ErrDamaged, log)
}

func memberDir(dir string) string { return filepath.Join(dir, "member") }

// readDatabase returns the last entry of the log that the database knows of,
// after a look at every page that is in use.
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

// walk visits every entry, so that a page that is none is met here.
func walk(b *bolt.Bucket) error {
	return b.ForEach(func(k, _ []byte) error {
		if len(k) == 0 {
			return errors.New("an entry has no key")
		}
		return nil
	})
}
