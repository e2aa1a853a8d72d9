package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/durable"
)

// format is the version of the files that this program writes; it reads those
// of earlier ones. Format 2 knows inline volumes, and block devices that are
// linked to from their Pods' directories, neither of which a program of format
// 1 would take away rightly.
const format = 2

// maxFile bounds a file: a record is a few KiB, with thousands of Pods some
// hundred.
const maxFile = 16 << 20

// lossyFile is there while records are lost and what they told of is not found.
const lossyFile = "lossy"

// Journal is the records of one node. It is safe for concurrent use; the
// records of one volume must be put by one goroutine at a time.
type Journal struct {
	dir     string
	records *durable.Records[file]
	// lossy says that records may be lost, it is not known of which volumes.
	lossy bool
}

type file struct {
	Format int           `json:"format"`
	Record *mount.Record `json:"record"`
}

// Open reads the journal in dir, which it makes when it does not exist, and
// returns the paths of files that could not be read and were moved aside. What
// records of an earlier boot of the host say to be done is not believed.
func Open(dir, boot string) (*Journal, []string, error) {
	j := &Journal{dir: dir}
	if err := j.prepare(); err != nil {
		return nil, nil, fmt.Errorf("make journal: %w", err)
	}
	kind := kind()
	// On a full disk only a crash that comes next forgets it.
	kind.BeforeAside = func() { _ = j.lose() }
	var aside []string
	var err error
	if j.records, aside, err = durable.OpenRecords(dir, boot, kind); err != nil {
		return nil, nil, fmt.Errorf("open journal: %w", err)
	}
	return j, aside, nil
}

func kind() durable.Kind[file] {
	return durable.Kind[file]{
		Format: format,
		Most:   maxFile,
		Path: func(f *file) (string, error) {
			if f.Record == nil {
				return "", errors.New("it holds no record")
			}
			return pathOf(f.Record.Key()), nil
		},
		Clone:    func(f *file) *file { return &file{f.Format, f.Record.Clone()} },
		Doubtful: func(f *file) *file { return &file{f.Format, f.Record.Doubtful()} },
		Boot:     func(f *file) *string { return &f.Record.Boot },
	}
}

// prepare makes what there is when there are no records. That they may have
// been lost is written before anything says otherwise.
func (j *Journal) prepare() error {
	aside := filepath.Join(j.dir, durable.Quarantine)
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
		if err := j.lose(); err != nil {
			return err
		}
	}
	_, err := os.Lstat(filepath.Join(j.dir, lossyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	j.lossy = err == nil
	return os.MkdirAll(aside, 0o700)
}

func (j *Journal) lose() error {
	j.lossy = true
	return durable.WriteFile(filepath.Join(j.dir, lossyFile), nil)
}

// Lossy says that records may be lost, it is not known of which volumes: there
// was no journal before, or some could not be read. It says so after a crash as
// well, until Found.
func (j *Journal) Lossy() bool { return j.lossy }

// Found says that there are records again of all that is here.
func (j *Journal) Found() error {
	if !j.lossy {
		return nil
	}
	if err := durable.Remove(filepath.Join(j.dir, lossyFile)); err != nil {
		return fmt.Errorf("write that no journal record is lost any more: %w", err)
	}
	j.lossy = false
	return nil
}

// Get returns a copy of the record of a volume, or nil.
func (j *Journal) Get(key string) *mount.Record {
	if f := j.records.Get(pathOf(key)); f != nil {
		return f.Record
	}
	return nil
}

// List returns copies of all records, ordered by volume.
func (j *Journal) List() []*mount.Record {
	var out []*mount.Record
	for _, f := range j.records.List(func(*file) bool { return true }) {
		out = append(out, f.Record)
	}
	slices.SortFunc(out, func(a, b *mount.Record) int { return strings.Compare(a.Key(), b.Key()) })
	return out
}

// Put writes a record before a deed that it is needed to undo, and returns when
// it will be found after a crash.
func (j *Journal) Put(r *mount.Record) error { return of(r, j.records.Put(&file{format, r})) }

// Settle is Put around deeds that take something away, which a full disk does
// not stop: durable.Records says how.
func (j *Journal) Settle(r *mount.Record) error { return of(r, j.records.Settle(&file{format, r})) }

func of(r *mount.Record, err error) error {
	if err != nil {
		return fmt.Errorf("journal of volume %s: %w", r.Key(), err)
	}
	return nil
}

// Drop deletes the record of a volume of which nothing is left. It may be
// repeated.
func (j *Journal) Drop(key string) error {
	if err := j.records.Drop(pathOf(key)); err != nil {
		return fmt.Errorf("journal of volume %s: %w", key, err)
	}
	return nil
}

// pathOf returns the name of a volume's file without its ending.
func pathOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
