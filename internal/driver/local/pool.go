package local

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	errMissing = errors.New("does not exist")
	errID      = errors.New("is not an id of this driver")
)

// pool is the directory that holds everything. Its methods are safe for use by
// several processes.
type pool struct {
	dir string
	id  string
}

// record is what is kept of a volume or a snapshot.
type record struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Size is the size of the image in bytes.
	Size int64 `json:"size"`
	// Source is the id of the volume or snapshot that it was copied from.
	Source string `json:"source,omitempty"`
	// Created is the time of creation in Unix nanoseconds.
	Created int64 `json:"created"`
	// Nodes are the ids of the nodes that the volume is published to.
	Nodes []string `json:"nodes,omitempty"`
}

// kind is a directory of the pool.
type kind string

const (
	volumes   kind = "volumes"
	snapshots kind = "snapshots"
)

// prefix is the first part of the ids of a kind.
func (k kind) prefix() string { return map[kind]string{volumes: "vol-", snapshots: "snap-"}[k] }

// idOf returns the id that follows from a name.
func (k kind) idOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return k.prefix() + hex.EncodeToString(sum[:16])
}

// checkID refuses whatever could lead out of the pool (CVE-2026-3864).
func (k kind) checkID(id string) error {
	if ok, _ := regexp.MatchString(`^(vol|snap)-[0-9a-f]{32}$`, id); !ok || !strings.HasPrefix(id, k.prefix()) {
		return fmt.Errorf("%.128q %w", id, errID)
	}
	return nil
}

func openPool(dir, node string) (*pool, error) {
	p := &pool{dir: dir}
	for _, d := range []string{"", string(volumes), string(snapshots), "nodes"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("open pool: %w", err)
		}
	}
	unlock, err := p.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.identify(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "nodes", hex.EncodeToString([]byte(node))), nil, 0o600); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return p, p.sweep()
}

func (p *pool) identify() error {
	path := filepath.Join(p.dir, "pool.json")
	var about struct {
		ID string `json:"id"`
	}
	err := readJSON(path, &about)
	if errors.Is(err, fs.ErrNotExist) {
		about.ID = strings.ToLower(rand.Text())
		err = writeJSON(path, about)
	}
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	p.id = about.ID
	return nil
}

// sweep deletes what was being made when a driver was killed. What another
// driver is still making is locked.
func (p *pool) sweep() error {
	for _, k := range []kind{volumes, snapshots} {
		left, err := filepath.Glob(filepath.Join(p.dir, string(k), ".new-*"))
		if err != nil {
			return fmt.Errorf("sweep pool: %w", err)
		}
		for _, dir := range left {
			if err := sweepOne(dir); err != nil {
				return fmt.Errorf("sweep pool: %w", err)
			}
		}
	}
	return nil
}

func sweepOne(dir string) error {
	f, err := os.Open(filepath.Join(dir, "disk.img"))
	if err == nil {
		defer f.Close()
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return nil
		}
	}
	return removeEntry(dir)
}

// removeEntry deletes the directory of a volume or snapshot: the files that
// this driver makes, by name, never a tree.
func removeEntry(dir string) error {
	for _, name := range []string{"volume.json.tmp", "volume.json", "disk.img", ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// lock takes the pool for changes, against this process too.
func (p *pool) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(p.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock pool: %w", err)
	}
	if err := ignoringInterrupts(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
		return nil, errors.Join(fmt.Errorf("lock pool: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func ignoringInterrupts(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (p *pool) path(k kind, id string) string { return filepath.Join(p.dir, string(k), id) }

// image returns the path of the file that holds the data.
func (p *pool) image(k kind, id string) string { return filepath.Join(p.path(k, id), "disk.img") }

// get returns what is kept of an id; errMissing when there is nothing.
func (p *pool) get(k kind, id string) (record, error) {
	var r record
	if err := k.checkID(id); err != nil {
		return r, err
	}
	err := readJSON(filepath.Join(p.path(k, id), "volume.json"), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%s %w", id, errMissing)
	}
	return r, err
}

// list returns everything of a kind, ordered by id.
func (p *pool) list(k kind) ([]record, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, string(k)))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", k, err)
	}
	var out []record
	for _, e := range entries {
		r, err := p.get(k, e.Name())
		if errors.Is(err, errMissing) || errors.Is(err, errID) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// add makes r and its image, filled by fill, appear at once. When an entry of
// that id has appeared meanwhile, that one is returned.
func (p *pool) add(k kind, r record, fill func(image *os.File) error) (record, error) {
	dir, err := os.MkdirTemp(filepath.Join(p.dir, string(k)), ".new-")
	if err != nil {
		return r, fmt.Errorf("make %s: %w", r.ID, err)
	}
	made, err := p.make(dir, r, fill)
	if made != nil {
		defer made.Close()
	}
	if err != nil {
		return r, errors.Join(fmt.Errorf("make %s: %w", r.ID, err), removeEntry(dir))
	}
	unlock, err := p.lock()
	if err != nil {
		return r, errors.Join(err, removeEntry(dir))
	}
	defer unlock()
	if there, err := p.get(k, r.ID); err == nil {
		return there, removeEntry(dir)
	}
	if err := os.Rename(dir, p.path(k, r.ID)); err != nil {
		return r, errors.Join(fmt.Errorf("make %s: %w", r.ID, err), removeEntry(dir))
	}
	return r, syncDir(filepath.Join(p.dir, string(k)))
}

// make fills a new directory. The returned image is locked until it is closed,
// so that nobody sweeps it.
func (p *pool) make(dir string, r record, fill func(image *os.File) error) (*os.File, error) {
	image, err := os.OpenFile(filepath.Join(dir, "disk.img"), os.O_CREATE|os.O_EXCL|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(image.Fd()), unix.LOCK_EX); err != nil {
		return image, err
	}
	if err := fill(image); err != nil {
		return image, err
	}
	if err := image.Truncate(r.Size); err != nil {
		return image, err
	}
	if err := image.Sync(); err != nil {
		return image, err
	}
	return image, writeJSON(filepath.Join(dir, "volume.json"), r)
}

// change rewrites what is kept of an id. An error of f leaves it as it was.
func (p *pool) change(k kind, id string, f func(*record) error) (record, error) {
	unlock, err := p.lock()
	if err != nil {
		return record{}, err
	}
	defer unlock()
	r, err := p.get(k, id)
	if err != nil {
		return r, err
	}
	before := r
	before.Nodes = slices.Clone(r.Nodes)
	if err := f(&r); err != nil {
		return before, err
	}
	return r, writeJSON(filepath.Join(p.path(k, id), "volume.json"), r)
}

// remove deletes an id if check agrees. The rename comes first: a driver that
// is killed in between leaves garbage that sweep takes, not half a volume.
func (p *pool) remove(k kind, id string, check func(record) error) error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := p.get(k, id)
	if err != nil {
		return err
	}
	if err := check(r); err != nil {
		return err
	}
	gone := filepath.Join(p.dir, string(k), ".new-gone-"+id)
	if err := os.Rename(p.path(k, id), gone); err != nil {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	if err := syncDir(filepath.Join(p.dir, string(k))); err != nil {
		return err
	}
	if err := removeEntry(gone); err != nil {
		return fmt.Errorf("delete %s: %w", id, err)
	}
	return nil
}

// knowsNode says whether a driver has ever served a node of that id.
func (p *pool) knowsNode(id string) bool {
	_, err := os.Stat(filepath.Join(p.dir, "nodes", hex.EncodeToString([]byte(id))))
	return err == nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file: after a crash either the old or the new content
// is there.
func writeJSON(path string, from any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
