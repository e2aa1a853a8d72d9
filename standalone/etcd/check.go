package etcd

import (
	"bytes"
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
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"
)

// ErrDamaged is the error of damaged data of etcd: etcd would not start, or would start
// without data that it has confirmed.
var ErrDamaged = errors.New("damaged")

// lockLimit is how long the check waits for another process to close the database.
const lockLimit = 5 * time.Second

// revisionBytes is the length of a revision as a key of the database.
const revisionBytes = 17

// State is what Check finds in a directory.
type State struct {
	// Exists says whether there are data.
	Exists bool
	// Position is how far the database has come.
	Position
}

// Check says whether a directory has data of etcd. It returns ErrDamaged with the name of the file if etcd would not
// start with them, or would lack data that it has confirmed. Check changes nothing. etcd itself does not report such
// damage: with a truncated log it waits forever, and with a truncated database it crashes.
func Check(dir string) (s State, err error) {
	// A page of the mapped database that cannot be read is reported as damage instead
	// of a crash.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s, err = State{Exists: true}, fmt.Errorf("%w: %s: %v", ErrDamaged, dir, p)
		}
	}()
	home := memberDir(dir)
	data, log := datadir.ToBackendFileName(home), datadir.ToWALDir(home)
	l, err := readLog(log)
	if err != nil {
		return State{Exists: true}, err
	}
	info, err := os.Stat(data)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !l.exists:
		return State{}, nil
	case errors.Is(err, fs.ErrNotExist):
		return State{Exists: true}, fmt.Errorf("%w: the database %s is missing, but its log exists", ErrDamaged, data)
	case err != nil:
		return State{Exists: true}, fmt.Errorf("check etcd: %w", err)
	case info.Size() == 0 && !l.exists:
		return State{}, nil // created a moment before a kill; etcd starts it again
	}
	d, err := readDatabase(data, info.Size())
	if err != nil {
		return State{Exists: true}, err
	}
	if !l.exists {
		return checkNoLog(log, d.applied)
	}
	return State{Exists: true, Position: Position{Cluster: l.cluster, Revision: d.revision}}, l.check(data, log, d.applied)
}

// checkNoLog recognizes a first start that was killed: the database is created before
// its log.
func checkNoLog(log string, applied uint64) (State, error) {
	if applied == 0 {
		return State{}, nil
	}
	return State{Exists: true}, fmt.Errorf("%w: the log %s is missing, but its database exists", ErrDamaged, log)
}

func memberDir(dir string) string { return filepath.Join(dir, "member") }

// Database returns the path of the database of the etcd with a directory.
func Database(dir string) string { return datadir.ToBackendFileName(memberDir(dir)) }

// dbFacts are what the database of a member says of itself.
type dbFacts struct {
	// applied is the last entry of the log that is in the database.
	applied uint64
	// revision is the last revision that is in the database.
	revision int64
}

// readDatabase reads every page of the database that is in use.
func readDatabase(path string, size int64) (d dbFacts, err error) {
	if size == 0 {
		return d, fmt.Errorf("%w: %s is empty", ErrDamaged, path)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockLimit})
	if err != nil {
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, bolterrors.ErrTimeout) {
			return d, fmt.Errorf("check etcd: open %s: %w", path, err)
		}
		return d, fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("%w: %s is %d bytes long, %d are in use", ErrDamaged, path, size, tx.Size())
		}
		if err := tx.ForEach(walk); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, path, err)
		}
		d.read(tx)
		return nil
	})
	return d, err
}

// read determines the facts as etcd does when it opens the database: the newest revisions may have been deletions, of
// which a compaction keeps only its own revision.
func (d *dbFacts) read(tx *bolt.Tx) {
	d.revision = 1 // of a store without a key
	if keys := tx.Bucket(schema.Key.Name()); keys != nil {
		if k, _ := keys.Cursor().Last(); k != nil {
			d.revision = max(d.revision, mvcc.BytesToRev(k).Main)
		}
	}
	meta := tx.Bucket(schema.Meta.Name())
	if meta == nil {
		return
	}
	if v := meta.Get(schema.MetaConsistentIndexKeyName); len(v) == 8 {
		d.applied = binary.BigEndian.Uint64(v)
	}
	for _, name := range [][]byte{schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName} {
		if v := meta.Get(name); v != nil {
			d.revision = max(d.revision, mvcc.BytesToRev(v).Main)
		}
	}
}

// walk reads every entry of a bucket, to detect damaged pages: keys must ascend, and those in etcd's bucket of keys
// must be revisions, with values that can be decoded.
func walk(name []byte, b *bolt.Bucket) error {
	var last []byte
	revisions := bytes.Equal(name, schema.Key.Name())
	return b.ForEach(func(k, v []byte) error {
		if len(k) == 0 || last != nil && bytes.Compare(last, k) >= 0 {
			return fmt.Errorf("the entry %.40x of %.40q follows %.40x", k, name, last)
		}
		last = k
		if !revisions {
			return nil
		}
		if len(k) < revisionBytes {
			return fmt.Errorf("the key %.40x is not a revision", k)
		}
		if err := proto.Unmarshal(v, &mvccpb.KeyValue{}); err != nil {
			return fmt.Errorf("the value at revision %d: %w", mvcc.BytesToRev(k).Main, err)
		}
		return nil
	})
}
