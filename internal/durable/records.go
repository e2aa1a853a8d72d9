package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

const (
	ending = ".json"
	// doubtEnding ends the name of a record that says less than was done.
	doubtEnding = ".doubt" + ending
	// Quarantine is the directory that damaged files are moved to, below that of the records.
	Quarantine = "quarantine"
	// maxAside bounds the files of one name in quarantine.
	maxAside = 1000
)

// ErrNewer says that a newer program wrote a record. What this program would do without it could unmount what is in
// use.
var ErrNewer = errors.New("it was written by a newer version of volplane")

var errTorn = errors.New("not a record")

// Kind says what the records of one directory are. The functions change nothing but what they return.
type Kind[T any] struct {
	// Format is the version of the records that are written, in their JSON field "format". Earlier ones are read, a
	// newer one refuses to be opened.
	Format int
	// Most bounds the size of a file.
	Most int64
	// Path returns the file of a record below the directory, without its ending. The error says that it is no record.
	Path func(*T) (string, error)
	// Clone returns a copy that shares nothing that is changed in place.
	Clone func(*T) *T
	// Doubtful returns a copy in which all is unknown that was reached.
	Doubtful func(*T) *T
	// Boot returns where a record names the boot of the host that it is of.
	Boot func(*T) *string
	// BeforeAside, if any, is called before a file is moved to quarantine, after which nothing tells of its record.
	BeforeAside func()
}

// Records are values in a directory, one file each, that survive a crash at any moment. They are safe for concurrent
// use; one goroutine at a time changes one record.
type Records[T any] struct {
	Kind[T]
	dir, boot string
	disk      disk

	mu  sync.Mutex
	all map[string]*T
	// doubtful are the records whose file has the doubtEnding.
	doubtful map[string]bool
}

// OpenRecords reads a directory, which it makes if need be. It returns the paths to which damaged files were moved: no
// file is deleted but those whose writing was not finished. Records of an earlier boot are read as Doubtful.
func OpenRecords[T any](dir, boot string, kind Kind[T]) (*Records[T], []string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make directory of records: %w", err)
	}
	r := &Records[T]{Kind: kind, dir: filepath.Clean(dir), boot: boot, all: map[string]*T{}, doubtful: map[string]bool{}}
	found, drafts, err := r.files()
	if err != nil {
		return nil, nil, fmt.Errorf("read records: %w", err)
	}
	// All are looked at before any is touched.
	values := map[string]*T{}
	for _, name := range found {
		if values[name], err = r.read(name); err != nil && !errors.Is(err, errTorn) {
			return nil, nil, fmt.Errorf("read record: %w", err)
		}
	}
	for _, name := range drafts {
		// What it was to replace is still there, and the deed that it was to precede was not done.
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return nil, nil, fmt.Errorf("remove unfinished record: %w", err)
		}
	}
	var aside []string
	for _, name := range found {
		to, err := r.load(name, values[name])
		if err != nil {
			return nil, nil, err
		}
		if to != "" {
			aside = append(aside, to)
		}
	}
	return r, aside, nil
}

// files returns the names of records and of drafts; records that are in doubt come last.
func (r *Records[T]) files() (found, drafts []string, err error) {
	var doubtful []string
	err = fs.WalkDir(os.DirFS(r.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name == Quarantine:
			return fs.SkipDir
		case strings.HasSuffix(name, Draft):
			drafts = append(drafts, name)
		case strings.HasSuffix(name, doubtEnding):
			doubtful = append(doubtful, name)
		case strings.HasSuffix(name, ending):
			found = append(found, name)
		}
		return nil
	})
	return append(found, doubtful...), drafts, err
}

// read returns errTorn, or no record at all, for a file that is no record, and ErrNewer for one that is unknown.
func (r *Records[T]) read(name string) (*T, error) {
	path := filepath.Join(r.dir, name)
	data, err := ReadFile(path, r.Most+1)
	if err != nil {
		return nil, err
	}
	// What else is in a newer record is not known here.
	var version struct{ Format int }
	if json.Unmarshal(data, &version) == nil && version.Format > r.Format {
		return nil, fmt.Errorf("%s has format %d, this program knows %d: %w", path, version.Format, r.Format, ErrNewer)
	}
	v := new(T)
	if json.Unmarshal(data, v) != nil || version.Format < 1 || int64(len(data)) > r.Most {
		return nil, errTorn
	}
	return v, nil
}

// load takes what was read from a file, if it is the record of that name. It returns where another file was moved to.
func (r *Records[T]) load(name string, v *T) (string, error) {
	own := ""
	if v != nil {
		own, _ = r.Path(v)
	}
	switch {
	case own == "" || name != own+ending && name != own+doubtEnding:
		return r.setAside(name)
	case name == own+ending:
	case r.all[own] != nil:
		return "", gone(os.Remove(filepath.Join(r.dir, name))) // the other file was written after this one
	default:
		v, r.doubtful[own] = r.Doubtful(v), true
	}
	if *r.Boot(v) != r.boot {
		v = r.Doubtful(v)
		*r.Boot(v) = r.boot
	}
	r.all[own] = v
	return "", nil
}

func (r *Records[T]) setAside(name string) (string, error) {
	aside := filepath.Join(r.dir, Quarantine)
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return "", fmt.Errorf("move damaged record aside: %w", err)
	}
	for n := range maxAside {
		to := filepath.Join(aside, fmt.Sprintf("%s.%d", filepath.Base(name), n))
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if r.BeforeAside != nil {
			r.BeforeAside()
		}
		if err := os.Rename(filepath.Join(r.dir, name), to); err != nil {
			return "", fmt.Errorf("move damaged record aside: %w", err)
		}
		return to, nil
	}
	return "", fmt.Errorf("move %s aside: %s is full", name, aside)
}

// Get returns a copy of the record of a path, or nil.
func (r *Records[T]) Get(path string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.all[path]; v != nil {
		return r.Clone(v)
	}
	return nil
}

// List returns copies of the records that match, in no order.
func (r *Records[T]) List(match func(*T) bool) []*T {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*T
	for _, v := range r.all {
		if match(v) {
			out = append(out, r.Clone(v))
		}
	}
	return out
}

// Put writes a record, as one of this boot, and returns when it will be found after a crash. After an error the record
// on the disk is the old or the new one.
func (r *Records[T]) Put(v *T) error {
	path, data, err := r.encode(v)
	if err != nil {
		return err
	}
	if err := r.makeDirs(filepath.Dir(filepath.Join(r.dir, path))); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := r.disk.writeFile(filepath.Join(r.dir, path+ending), data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[path] = r.Clone(v)
	if r.doubtful[path] {
		// One that stays is older than what was written now, and is not believed.
		_ = r.disk.remove(filepath.Join(r.dir, path+doubtEnding))
		delete(r.doubtful, path)
	}
	return nil
}

func (r *Records[T]) encode(v *T) (string, []byte, error) {
	*r.Boot(v) = r.boot
	path, err := r.Path(v)
	if err == nil && (!filepath.IsLocal(path) || slices.Contains(strings.Split(path, "/"), Quarantine)) {
		err = fmt.Errorf("%q is no path of a record", path)
	}
	if err != nil {
		return "", nil, fmt.Errorf("write record: %w", err)
	}
	data, err := json.Marshal(v)
	if err == nil && int64(len(data)) > r.Most {
		err = fmt.Errorf("it has %d bytes, %d are possible", len(data), r.Most)
	}
	if err != nil {
		return "", nil, fmt.Errorf("write record %s: %w", path, err)
	}
	return path, data, nil
}

// makeDirs makes the directory of a record, for good. That of all records was there: it is not made anew under a
// process that works with it.
func (r *Records[T]) makeDirs(dir string) error {
	if _, err := os.Lstat(dir); err == nil || dir == r.dir {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for ; len(dir) > len(r.dir); dir = filepath.Dir(dir) {
		if err := r.disk.sync(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return nil
}

// Settle is Put for a record of which nothing needs to be known that the last one does not say: something was taken
// away or is about to be, or what was under way is done. When there is no room for it, the last one is put in doubt
// instead, which takes none: after a crash nothing that it says to be done is believed, and all of it is repeated or
// undone.
func (r *Records[T]) Settle(v *T) error {
	err := r.Put(v)
	if err == nil {
		return nil
	}
	path, pathErr := r.Path(v)
	if pathErr != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := filepath.Join(r.dir, path)
	if r.disk.rename(at+ending, at+doubtEnding) == nil {
		r.doubtful[path] = true
	} else if _, missing := os.Lstat(at + doubtEnding); missing != nil || !r.doubtful[path] {
		return err
	}
	if r.disk.sync(filepath.Dir(at)) != nil {
		return err
	}
	r.all[path] = r.Clone(v)
	return nil
}

// Drop deletes the record of a path. It may be repeated.
func (r *Records[T]) Drop(path string) error {
	at := filepath.Join(r.dir, path)
	err := errors.Join(r.disk.remove(at+doubtEnding), r.disk.remove(at+ending))
	if err == nil {
		// Also of one that is not there: the last removal may not be on the disk.
		if err = r.disk.sync(filepath.Dir(at)); errors.Is(err, fs.ErrNotExist) {
			err = r.disk.sync(r.dir) // there was never a record in that directory
		}
	}
	if err != nil {
		return fmt.Errorf("drop record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, path)
	delete(r.doubtful, path)
	return nil
}
