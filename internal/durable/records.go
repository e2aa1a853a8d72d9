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

	"golang.org/x/sys/unix"
)

const (
	suffix = ".json"
	// uncertainSuffix is the suffix of a record in doubt: more may have been done than it says.
	uncertainSuffix = ".doubt" + suffix
	// Quarantine is the directory of files that cannot be read, below that of the records.
	Quarantine = "quarantine"
	// maxQuarantined is how many files of one name are kept in quarantine.
	maxQuarantined = 1000
)

// ErrNewer says that a newer program has written a record. Without understanding it, this program
// could unmount volumes that are in use.
var ErrNewer = errors.New("it was written by a newer version of volplane")

// Kind describes the records of one directory. Its functions must not change their arguments.
type Kind[T any] struct {
	// Format is the format version of records, in their JSON field "format". Records of older
	// formats are read; a newer one makes OpenRecords fail.
	Format int
	// Most is the size limit of a file, in bytes.
	Most int64
	// Path returns the path of a record's file, relative to the directory and without suffix. It
	// fails for a value that is not a valid record.
	Path func(*T) (string, error)
	// Clone returns a copy that shares no data that is changed in place.
	Clone func(*T) *T
	// Uncertain returns a copy in which no step counts as reached.
	Uncertain func(*T) *T
	// Boot returns a pointer to the record's field for the boot id of the host.
	Boot func(*T) *string
	// BeforeAside, if set, is called before a file that cannot be read is moved to quarantine: its record
	// is lost.
	BeforeAside func()
}

// Records holds values in a directory, one file each, that survive a crash at any moment. It is
// safe for concurrent use; but each record must be changed by one goroutine at a time.
type Records[T any] struct {
	Kind[T]
	dir, boot string
	disk      disk

	mu  sync.Mutex
	all map[string]*T
	// uncertain holds the records whose file has the uncertainSuffix.
	uncertain map[string]bool
}

// OpenRecords reads a directory, which it creates if needed. A file that cannot be read costs its own
// record and no other: it is moved to quarantine, or stays where it is if it cannot be moved. The paths
// of such files are returned; only drafts are deleted. Records of an earlier boot are read as Uncertain.
// It may be repeated.
func OpenRecords[T any](dir, boot string, kind Kind[T]) (*Records[T], []string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make directory of records: %w", err)
	}
	r := &Records[T]{Kind: kind, dir: filepath.Clean(dir), boot: boot, all: map[string]*T{}, uncertain: map[string]bool{}}
	found, drafts, err := r.files()
	if err != nil {
		return nil, nil, fmt.Errorf("read records: %w", err)
	}
	// All files are read before any is changed.
	values := map[string]*T{}
	for _, name := range found {
		if values[name], err = r.read(name); err != nil {
			return nil, nil, fmt.Errorf("read record: %w", err)
		}
	}
	var aside []string
	for _, name := range drafts {
		// The record that the draft was to replace still exists, and the action that should follow
		// was not done.
		if ignoreNotExist(os.Remove(filepath.Join(dir, name))) != nil {
			aside = append(aside, r.quarantine(name))
		}
	}
	for _, name := range found {
		if !r.load(name, values[name]) {
			if r.BeforeAside != nil {
				r.BeforeAside()
			}
			aside = append(aside, r.quarantine(name))
		}
	}
	return r, aside, nil
}

// files returns the names of records and of drafts; records in doubt are last. A directory that cannot be
// read, or is a link, is returned as a record, and so is one that has the place of a record.
func (r *Records[T]) files() (found, drafts []string, err error) {
	var l listing
	var dirs []string
	err = fs.WalkDir(os.DirFS(r.dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch list := l.of(name); {
		case err != nil && (name == "." || ofProcess(err)):
			return err
		case name == Quarantine && d.IsDir():
			return fs.SkipDir
		case name == Quarantine:
		case err != nil || r.isLinkedDir(name, d):
			l.found = append(l.found, name)
		case list == nil:
		case d.IsDir():
			dirs = append(dirs, name)
		default:
			*list = append(*list, name)
		}
		return nil
	})
	l.addDirs(dirs)
	return append(l.found, l.uncertain...), l.drafts, err
}

// listing has the names of files by what they are.
type listing struct{ found, uncertain, drafts []string }

// of returns the list for a name, or nil if it is not the name of a file of records.
func (l *listing) of(name string) *[]string {
	switch {
	case strings.HasSuffix(name, Draft):
		return &l.drafts
	case strings.HasSuffix(name, uncertainSuffix):
		return &l.uncertain
	case strings.HasSuffix(name, suffix):
		return &l.found
	}
	return nil
}

// addDirs adds directories that have the place of a file.
func (l *listing) addDirs(dirs []string) {
	for _, dir := range dirs {
		// A directory with records below it is part of their paths.
		inPath := func(name string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
		if list := l.of(dir); !slices.ContainsFunc(slices.Concat(l.found, l.uncertain), inPath) {
			*list = append(*list, dir)
		}
	}
}

// isLinkedDir says whether a name is a link to a directory: what is behind it was not written here.
func (r *Records[T]) isLinkedDir(name string, d fs.DirEntry) bool {
	if d.Type()&fs.ModeSymlink == 0 {
		return false
	}
	to, err := os.Stat(filepath.Join(r.dir, name))
	return err == nil && to.IsDir()
}

// ofProcess says whether an error is about what this process may still use, and not about a file.
func ofProcess(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// read returns nil for what cannot be read as a record, and ErrNewer for a record of an unknown format.
func (r *Records[T]) read(name string) (*T, error) {
	path := filepath.Join(r.dir, name)
	data, err := ReadFile(path, r.Most+1)
	if err != nil && ofProcess(err) {
		return nil, err
	}
	// Only the format is decoded first: the other fields of a newer record are unknown.
	var version struct{ Format int }
	if json.Unmarshal(data, &version) == nil && version.Format > r.Format {
		return nil, fmt.Errorf("%s has format %d, this program knows %d: %w", path, version.Format, r.Format, ErrNewer)
	}
	v := new(T)
	if err != nil || json.Unmarshal(data, v) != nil || version.Format < 1 || int64(len(data)) > r.Most {
		return nil, nil //nolint:nilnil,nilerr // the file is one that cannot be read
	}
	return v, nil
}

// load stores a record that was read from a file, and says whether the file has the record's name.
func (r *Records[T]) load(name string, v *T) bool {
	own := ""
	if v != nil {
		own, _ = r.Path(v)
	}
	switch {
	case own == "" || name != own+suffix && name != own+uncertainSuffix:
		return false
	case name == own+suffix:
	case r.all[own] != nil:
		// The other file was written after this one, which is ignored as long as the other one exists.
		_ = os.Remove(filepath.Join(r.dir, name))
		return true
	default:
		v, r.uncertain[own] = r.Uncertain(v), true
	}
	if *r.Boot(v) != r.boot {
		v = r.Uncertain(v)
		*r.Boot(v) = r.boot
	}
	r.all[own] = v
	return true
}

// quarantine moves a file to quarantine, and returns where it is then: in its place, if it cannot be moved.
func (r *Records[T]) quarantine(name string) string {
	from, dir := filepath.Join(r.dir, name), filepath.Join(r.dir, Quarantine)
	if os.MkdirAll(dir, 0o700) != nil {
		return from
	}
	for n := range maxQuarantined {
		to := filepath.Join(dir, fmt.Sprintf("%s.%d", filepath.Base(name), n))
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) && os.Rename(from, to) == nil {
			return to
		}
	}
	return from
}

// Get returns a copy of the record with a path, or nil.
func (r *Records[T]) Get(path string) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.all[path]; v != nil {
		return r.Clone(v)
	}
	return nil
}

// List returns copies of the records that match, in no particular order.
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

// Put writes a record, with the current boot id, and returns when it is on the disk. After an error
// the disk has the old or the new record. It may be repeated.
func (r *Records[T]) Put(v *T) error {
	path, data, err := r.encode(v)
	if err != nil {
		return err
	}
	if err := r.makeDirs(filepath.Dir(filepath.Join(r.dir, path))); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := r.disk.writeFile(filepath.Join(r.dir, path+suffix), data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[path] = r.Clone(v)
	if r.uncertain[path] {
		// If this fails, the file in doubt is ignored, because it is older than the new one.
		_ = r.disk.remove(filepath.Join(r.dir, path+uncertainSuffix))
		delete(r.uncertain, path)
	}
	return nil
}

func (r *Records[T]) encode(v *T) (string, []byte, error) {
	*r.Boot(v) = r.boot
	path, err := r.Path(v)
	if err == nil && (!filepath.IsLocal(path) || slices.Contains(strings.Split(path, "/"), Quarantine)) {
		err = fmt.Errorf("%q is not a path of a record", path)
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

// makeDirs creates the directory of a record durably. It does not create the directory of all
// records: if that was removed while it is in use, writes fail.
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

// Settle is Put for a record whose loss would only make work be repeated: something was undone or
// is about to be, or a step is done. If the disk has no space for it, the existing record is put in
// doubt instead, which needs no space: after a crash nothing counts as done that it says, and all
// of it is repeated or undone.
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
	if r.disk.rename(at+suffix, at+uncertainSuffix) == nil {
		r.uncertain[path] = true
	} else if _, missing := os.Lstat(at + uncertainSuffix); missing != nil || !r.uncertain[path] {
		return err
	}
	if r.disk.sync(filepath.Dir(at)) != nil {
		return err
	}
	r.all[path] = r.Clone(v)
	return nil
}

// Drop deletes the record with a path. It may be repeated.
func (r *Records[T]) Drop(path string) error {
	at := filepath.Join(r.dir, path)
	err := errors.Join(r.disk.remove(at+uncertainSuffix), r.disk.remove(at+suffix))
	if err == nil {
		// This is also done if there was no file: an earlier removal may not be on the disk yet.
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
	delete(r.uncertain, path)
	return nil
}
