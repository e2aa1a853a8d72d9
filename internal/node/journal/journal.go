package journal

import (
	"cmp"
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

// format is the version of the files that this program writes; it reads earlier ones, too. Format 2 adds
// inline volumes and links to block devices in Pods' directories, which a program of format 1 would not
// remove correctly.
const format = 2

// maxFile bounds the size of a file: a record has a few KiB, with thousands of Pods a few hundred.
const maxFile = 16 << 20

// lossyFile is the name of a file that exists while records may be lost and are not rebuilt.
const lossyFile = "lossy"

// Journal has the records of one node. It is safe for concurrent use; but each record must be changed
// by one goroutine at a time.
type Journal struct {
	dir     string
	records *durable.Records[file]
	// lossy says that records of unknown volumes may be lost.
	lossy bool
}

type file struct {
	Format int           `json:"format"`
	Record *mount.Record `json:"record"`
}

// Open reads the journal in dir, which it creates if needed. It returns the paths of the files that could not be read,
// most of which it has moved aside. Records of an earlier boot of the host are read as Uncertain.
func Open(dir, boot string) (*Journal, []string, error) {
	j := &Journal{dir: dir}
	if err := j.prepare(); err != nil {
		return nil, nil, fmt.Errorf("create journal: %w", err)
	}
	kind := kind()
	// If the disk is full, the mark is lost only if this process crashes before it has rebuilt records.
	kind.BeforeAside = func() { _ = j.markLossy() }
	var quarantined []string
	var err error
	if j.records, quarantined, err = durable.OpenRecords(dir, boot, kind); err != nil {
		return nil, nil, fmt.Errorf("open journal: %w", err)
	}
	return j, quarantined, nil
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
		Clone:     func(f *file) *file { return &file{f.Format, f.Record.Clone()} },
		Uncertain: func(f *file) *file { return &file{f.Format, f.Record.Uncertain()} },
		Boot:      func(f *file) *string { return &f.Record.Boot },
	}
}

// prepare creates the directories. A journal without a quarantine is new or was deleted; it is marked
// as lossy before the quarantine exists.
func (j *Journal) prepare() error {
	quarantine := filepath.Join(j.dir, durable.Quarantine)
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(quarantine); errors.Is(err, fs.ErrNotExist) {
		if err := j.markLossy(); err != nil {
			return err
		}
	}
	_, err := os.Lstat(filepath.Join(j.dir, lossyFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	j.lossy = err == nil
	return os.MkdirAll(quarantine, 0o700)
}

func (j *Journal) markLossy() error {
	j.lossy = true
	return durable.WriteFile(filepath.Join(j.dir, lossyFile), nil)
}

// Lossy means that records of unknown volumes may be lost, because there was no journal before, or files could not be
// read. It survives a crash and lasts until MarkComplete.
func (j *Journal) Lossy() bool { return j.lossy }

// MarkComplete says that all lost records have been rebuilt.
func (j *Journal) MarkComplete() error {
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
func (j *Journal) List() []*mount.Record { return j.list(func(*file) bool { return true }) }

// Of returns copies of the records that have a target of a Pod, ordered by volume.
func (j *Journal) Of(podUID string) []*mount.Record {
	return j.list(func(f *file) bool {
		return slices.ContainsFunc(f.Record.Targets, func(t mount.Target) bool { return t.PodUID == podUID })
	})
}

func (j *Journal) list(match func(*file) bool) []*mount.Record {
	var out []*mount.Record
	for _, f := range j.records.List(match) {
		out = append(out, f.Record)
	}
	slices.SortFunc(out, func(a, b *mount.Record) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Handle, b.Handle))
	})
	return out
}

// Put writes a record before a step that it is needed to undo, and returns when it survives a crash.
func (j *Journal) Put(r *mount.Record) error { return wrap(r, j.records.Put(&file{format, r})) }

// Settle is Put for unmounts, and succeeds on a full disk, as durable.Records explains.
func (j *Journal) Settle(r *mount.Record) error { return wrap(r, j.records.Settle(&file{format, r})) }

func wrap(r *mount.Record, err error) error {
	if err != nil {
		return fmt.Errorf("journal of volume %s: %w", r.Key(), err)
	}
	return nil
}

// Drop deletes the record of a volume. It may be repeated.
func (j *Journal) Drop(key string) error {
	if err := j.records.Drop(pathOf(key)); err != nil {
		return fmt.Errorf("journal of volume %s: %w", key, err)
	}
	return nil
}

// pathOf returns the name of a volume's file without its extension.
func pathOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
