package journal

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"volplane.dev/volplane/internal/decide/mount"
)

// format is the version of the files that this program writes; it reads those
// of earlier ones. Format 2 knows inline volumes, and block devices that are
// linked to from their Pods' directories, neither of which a program of format
// 1 would take away rightly.
const format = 2

// maxFile bounds a file: a record is a few KiB, with thousands of Pods some
// hundred.
const maxFile = 16 << 20

const (
	suffix     = ".json"
	tmpSuffix  = ".tmp"
	quarantine = "quarantine"
	// doubtSuffix ends the name of a record that more was done of than it says.
	doubtSuffix = ".doubt" + suffix
	// lossy is there while records are lost and what they told of is not found.
	lossy = "lossy"
)

// ErrNewer says that a newer program wrote the journal. Starting anyway could
// unmount what is in use.
var ErrNewer = errors.New("journal was written by a newer version of volplane")

var errTorn = errors.New("not a journal record")

// Journal is the records of one node. It is safe for concurrent use; the
// records of one volume must be put by one goroutine at a time.
type Journal struct {
	dir string
	// sync returns when a file is on the disk; tests look when it is asked.
	sync func(*os.File) error

	// lossy says that records may be lost, it is not known of which volumes.
	lossy bool

	mu      sync.Mutex
	records map[string]*mount.Record
	// doubtful are the volumes whose file is named with doubtSuffix.
	doubtful map[string]bool
}

type file struct {
	Format int           `json:"format"`
	Record *mount.Record `json:"record"`
}

// Open reads the journal in dir, which it makes when it does not exist, and
// returns the paths of files that could not be read and were moved aside.
// Records of an earlier boot of the host are read as mount.Record.AfterBoot.
func Open(dir, boot string) (*Journal, []string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make journal: %w", err)
	}
	j := &Journal{dir: dir, sync: (*os.File).Sync, records: map[string]*mount.Record{}, doubtful: map[string]bool{}}
	if err := j.begin(); err != nil {
		return nil, nil, fmt.Errorf("make journal: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read journal: %w", err)
	}
	if err := refuseNewer(dir, entries); err != nil {
		return nil, nil, err
	}
	var aside []string
	// In this order a record comes before one of the same volume that is in
	// doubt.
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int {
		return cmp.Compare(strings.Count(a.Name(), doubtSuffix), strings.Count(b.Name(), doubtSuffix))
	})
	for _, e := range entries {
		moved, err := j.load(e.Name(), boot)
		if err != nil {
			return nil, nil, err
		}
		if moved != "" {
			aside = append(aside, moved)
		}
	}
	return j, aside, nil
}

// begin makes what there is when there are no records. That they may have been
// lost is written before anything says otherwise.
func (j *Journal) begin() error {
	aside := filepath.Join(j.dir, quarantine)
	if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
		if err := j.lose(); err != nil {
			return err
		}
	}
	_, err := os.Lstat(filepath.Join(j.dir, lossy))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	j.lossy = err == nil
	return os.MkdirAll(aside, 0o700)
}

func (j *Journal) lose() error {
	j.lossy = true
	return j.replace(lossy, nil)
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
	if err := errors.Join(remove(filepath.Join(j.dir, lossy)), j.syncDir()); err != nil {
		return fmt.Errorf("write that no journal record is lost any more: %w", err)
	}
	j.lossy = false
	return nil
}

// load reads one file. It returns where the file was moved to when it is torn.
func (j *Journal) load(name, boot string) (string, error) {
	path := filepath.Join(j.dir, name)
	switch {
	case strings.HasSuffix(name, tmpSuffix):
		// A write that was not finished: what it was to replace is still
		// there, and the deed it was to precede was not done.
		if err := os.Remove(path); err != nil {
			return "", fmt.Errorf("remove unfinished journal record: %w", err)
		}
		return "", nil
	case !strings.HasSuffix(name, suffix):
		return "", nil
	}
	r, err := read(path)
	switch {
	case err == nil && fileName(r.Key()) == name:
		j.records[r.Key()] = r.AfterBoot(boot)
		return "", nil
	case err == nil && doubtName(r.Key()) == name:
		return "", j.loadDoubtful(r, boot)
	case err == nil || errors.Is(err, errTorn):
		return j.setAside(name)
	default:
		return "", err
	}
}

// loadDoubtful takes a record that is in doubt, unless there is one that is not:
// that one is newer.
func (j *Journal) loadDoubtful(r *mount.Record, boot string) error {
	if j.records[r.Key()] != nil {
		return remove(filepath.Join(j.dir, doubtName(r.Key())))
	}
	j.records[r.Key()], j.doubtful[r.Key()] = r.Doubtful().AfterBoot(boot), true
	return nil
}

// refuseNewer looks at all files before any is touched.
func refuseNewer(dir string, entries []os.DirEntry) error {
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := content(path)
		if err != nil {
			return err
		}
		// What a newer record looks like is not known here.
		var version struct{ Format int }
		if json.Unmarshal(data, &version) == nil && version.Format > format {
			return fmt.Errorf("%s has format %d, this program knows %d: %w", path, version.Format, format, ErrNewer)
		}
	}
	return nil
}

func content(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read journal record: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read journal record %s: %w", path, err)
	}
	return data, nil
}

func read(path string) (*mount.Record, error) {
	data, err := content(path)
	if err != nil {
		return nil, err
	}
	var f file
	if json.Unmarshal(data, &f) != nil || f.Format < 1 || f.Record == nil || len(data) > maxFile {
		return nil, errTorn
	}
	return f.Record, nil
}

func (j *Journal) setAside(name string) (string, error) {
	for n := range 1000 {
		to := filepath.Join(j.dir, quarantine, fmt.Sprintf("%s.%d", name, n))
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		// On a full disk only a crash that comes next forgets it.
		_ = j.lose()
		if err := os.Rename(filepath.Join(j.dir, name), to); err != nil {
			return "", fmt.Errorf("move unreadable journal record aside: %w", err)
		}
		return to, nil
	}
	return "", fmt.Errorf("move %s aside: %s is full", name, filepath.Join(j.dir, quarantine))
}

// Get returns a copy of the record of a volume, or nil.
func (j *Journal) Get(key string) *mount.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.records[key].Clone()
}

// List returns copies of all records, ordered by volume.
func (j *Journal) List() []*mount.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]*mount.Record, 0, len(j.records))
	for _, r := range j.records {
		out = append(out, r.Clone())
	}
	slices.SortFunc(out, func(a, b *mount.Record) int { return strings.Compare(a.Key(), b.Key()) })
	return out
}

// Put writes a record and returns when it will be found after a crash. After
// an error the record on the disk is the old or the new one.
func (j *Journal) Put(r *mount.Record) error {
	r = r.Clone()
	data, err := json.Marshal(file{format, r})
	if err != nil {
		return fmt.Errorf("write journal record of %s: %w", r.Key(), err)
	}
	if err := j.replace(fileName(r.Key()), data); err != nil {
		return fmt.Errorf("write journal record of %s: %w", r.Key(), err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records[r.Key()] = r
	if j.doubtful[r.Key()] {
		// One that stays is older than what was written now, and is not believed.
		_ = remove(filepath.Join(j.dir, doubtName(r.Key())))
		delete(j.doubtful, r.Key())
	}
	return nil
}

// Settle is Put for a record of which nothing needs to be known that the last one
// does not say: something was taken away or is about to be, or what was under
// way is done. When there is no room for it, the last one is put in doubt
// instead, which takes none: after a crash nothing that it says to be done is
// believed, and all of it is repeated or undone.
func (j *Journal) Settle(r *mount.Record) error {
	err := j.Put(r)
	if err == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if key := r.Key(); !j.doubtful[key] {
		if os.Rename(filepath.Join(j.dir, fileName(key)), filepath.Join(j.dir, doubtName(key))) != nil {
			return err
		}
		j.doubtful[key] = true
	}
	if j.syncDir() != nil {
		return err
	}
	j.records[r.Key()] = r.Clone()
	return nil
}

func (j *Journal) replace(name string, data []byte) error {
	path := filepath.Join(j.dir, name)
	f, err := os.OpenFile(path+tmpSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, j.sync(f), f.Close())
	if err == nil {
		err = os.Rename(path+tmpSuffix, path)
	}
	if err != nil {
		// Half a file is in the way of others.
		_ = os.Remove(path + tmpSuffix)
		return err
	}
	return j.syncDir()
}

// Drop deletes the record of a volume of which nothing is left. It may be
// repeated.
func (j *Journal) Drop(key string) error {
	err := errors.Join(remove(filepath.Join(j.dir, doubtName(key))), remove(filepath.Join(j.dir, fileName(key))))
	if err == nil {
		err = j.syncDir()
	}
	if err != nil {
		return fmt.Errorf("drop journal record of %s: %w", key, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.records, key)
	delete(j.doubtful, key)
	return nil
}

// remove deletes a file that may be gone.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (j *Journal) syncDir() error {
	d, err := os.Open(j.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return j.sync(d)
}

func fileName(key string) string { return baseName(key) + suffix }

func doubtName(key string) string { return baseName(key) + doubtSuffix }

func baseName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
