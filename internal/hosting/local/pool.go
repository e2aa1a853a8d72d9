package local

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/mount"
)

var (
	errMissing = errors.New("does not exist")
	errID      = errors.New("is not an id of this driver")
	errDamaged = errors.New("is damaged")
	errBusy    = errors.New("another operation on it is in progress; try again after that has ended")
	errServed  = errors.New("another driver serves this node with this pool; stop it first")
)

// The files of a volume or a snapshot.
const (
	recordFile = "volume.json"
	imageFile  = "disk.img"
	// nodeFile has the id of the node that a volume is published to. It is a file of its own so
	// that unpublishing needs no space on a full disk.
	nodeFile = "node"
	// formattingFile exists while a filesystem is being made.
	formattingFile = "formatting"
)

// maxSmall is the size limit of files that are read as a whole, in bytes.
const maxSmall = 64 << 10

// pool is the directory of all volumes and snapshots. Several processes may use it concurrently.
type pool struct {
	dir string
	id  string
	// served is locked while this driver serves its node.
	served *os.File
	// loops finds the devices of volumes, and mounts the mounts.
	loops  mount.Loops
	mounts mount.Table
	// search finds the processes that use a device.
	search mount.Search
}

// record describes a volume or a snapshot. The file never changes.
type record struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Source is the id of the volume or snapshot that it was copied from.
	Source string `json:"source,omitempty"`
	// Created is the time of creation in Unix nanoseconds.
	Created int64 `json:"created"`
	// Preallocated says that the image has all of its space on the disk.
	Preallocated bool `json:"preallocated,omitempty"`

	// Size is the size of the image in bytes. It is not stored elsewhere, so that no crash can make
	// two sizes differ.
	Size int64 `json:"-"`
	// Node is the id of the node that the volume is published to, or "".
	Node string `json:"-"`
}

// kind is a directory of the pool.
type kind string

const (
	volumes   kind = "volumes"
	snapshots kind = "snapshots"
	groups    kind = "groups"
)

// prefix is the first part of the ids of a kind.
func (k kind) prefix() string {
	return map[kind]string{volumes: "vol-", snapshots: "snap-", groups: groupPrefix}[k]
}

// idOf returns the id for a name.
func (k kind) idOf(name string) string { return k.prefix() + digest(name) }

// checkID refuses ids that could lead out of the pool (CVE-2026-3864). The id of a snapshot that belongs to a group has
// a second part.
func (k kind) checkID(id string) error {
	rest, ok := strings.CutPrefix(id, k.prefix())
	first, second, two := strings.Cut(rest, "-")
	if !ok || !isDigest(first) || two && (k != snapshots || !isDigest(second)) {
		return fmt.Errorf("%.128q %w", id, errID)
	}
	return nil
}

// isDigest says whether a text has the form of a digest.
func isDigest(text string) bool {
	return len(text) == 32 && strings.Trim(text, "0123456789abcdef") == ""
}

// digest returns a hash of a name, for use in file names.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:16])
}

// openPool creates the pool if needed, locks the node for this driver, and deletes the leftovers of killed drivers.
func openPool(dir, node string) (*pool, error) {
	if node == "" {
		return nil, errors.New("open pool: no id for this node")
	}
	p := &pool{dir: dir}
	for _, d := range []string{"", string(volumes), string(snapshots), string(groups), "nodes"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("open pool: %w", err)
		}
	}
	if err := p.identify(); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	if err := p.serve(node); err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return p, nil
}

// servedLimit is how long a node may still be locked: the lock of a killed driver is held until the
// last program that it was just starting runs.
const servedLimit = time.Second

// close unlocks the node for another driver.
func (p *pool) close() {
	_ = p.served.Close()
	_ = p.mounts.Close()
}

// identify reads the pool's id, or creates it.
func (p *pool) identify() error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	path := filepath.Join(p.dir, "pool.json")
	var about struct {
		ID string `json:"id"`
	}
	err = durable.ReadJSON(path, maxSmall, &about)
	if errors.Is(err, fs.ErrNotExist) {
		about.ID = strings.ToLower(rand.Text())
		err = durable.WriteJSON(path, about)
	}
	if err != nil {
		return err
	}
	if about.ID == "" {
		return fmt.Errorf("%s does not name an id: restore it from a backup", path)
	}
	p.id = about.ID
	return nil
}

// serve locks the node's file. The kernel unlocks it when the driver ends, however it ends.
func (p *pool) serve(node string) error {
	ctx, cancel := context.WithTimeout(context.Background(), servedLimit)
	defer cancel()
	f, err := durable.Lock(ctx, p.nodePath(node))
	if errors.Is(err, durable.ErrLocked) {
		err = errServed
	}
	if err != nil {
		return fmt.Errorf("serve node %.128q with pool %s: %w", node, p.dir, err)
	}
	p.served = f
	return nil
}

// knowsNode says whether a driver has ever served the node.
func (p *pool) knowsNode(id string) bool {
	_, err := os.Lstat(p.nodePath(id))
	return err == nil
}

func (p *pool) nodePath(id string) string { return filepath.Join(p.dir, "nodes", digest(id)) }

// sweep deletes entries whose creation or deletion was interrupted by a kill. Those that another driver is creating are
// locked. Entries that cannot be deleted stay, and are in the error.
func (p *pool) sweep() error {
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var failed []error
	for k, sweep := range map[kind]func(dir string) error{volumes: sweepOne, snapshots: sweepOne, groups: sweepGroup} {
		garbage, err := filepath.Glob(filepath.Join(p.dir, string(k), ".new-*"))
		failed = append(failed, err)
		for _, dir := range garbage {
			failed = append(failed, sweep(dir))
		}
	}
	return errors.Join(failed...)
}

func sweepOne(dir string) error {
	if unlock, mine := lockGarbage(dir); mine {
		defer unlock()
		return removeEntry(dir)
	}
	return nil
}

// lockGarbage locks the image of an entry, if it has one; false if another driver is working on it.
func lockGarbage(dir string) (unlock func(), mine bool) {
	f, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return func() {}, true
	}
	return func() { _ = f.Close() }, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// removeEntry deletes the directory of a volume or snapshot: only the files that this driver
// creates, by name, never a tree.
func removeEntry(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("remove %s: it is not a directory", dir)
	}
	names := []string{
		recordFile + durable.Draft, recordFile, nodeFile + durable.Draft, nodeFile, formattingFile, imageFile, "",
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// lock locks the pool for a change, also against other goroutines of this process.
func (p *pool) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(p.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
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

func (p *pool) path(k kind, id string) string {
	if group := groupOf(id); group != "" {
		return filepath.Join(p.dir, string(groups), group, id)
	}
	return filepath.Join(p.dir, string(k), id)
}

// image returns the path of the file with the data.
func (p *pool) image(k kind, id string) string { return filepath.Join(p.path(k, id), imageFile) }

// get returns the record of an id; errMissing if there is none. A damaged entry is another error:
// it is never replaced or deleted, because it may hold data.
func (p *pool) get(k kind, id string) (record, error) {
	if err := k.checkID(id); err != nil {
		return record{}, err
	}
	r := record{ID: id}
	err := settled(p.path(k, id), func(dir string) (err error) {
		r, err = readEntry(dir, id)
		return err
	})
	return r, err
}

// settled calls read for a directory, and again if another one has taken its place in the meantime: a directory that
// is being deleted or created is not damaged.
func settled(dir string, read func(dir string) error) error {
	for {
		stays, err := once(dir, read)
		if stays {
			return err
		}
	}
}

func once(dir string, read func(dir string) error) (stays bool, err error) {
	// While it is open, no other directory can get its inode.
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, fmt.Errorf("%s %w", filepath.Base(dir), errMissing)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return true, damaged(dir, errors.New("it is not a directory"))
	case err != nil:
		return true, err
	}
	defer d.Close()
	err = read(dir)
	return sameFile(d, dir), err
}

// readEntry reads the directory of an id.
func readEntry(dir, id string) (record, error) {
	var r record
	if err := durable.ReadJSON(filepath.Join(dir, recordFile), maxSmall, &r); err != nil {
		return record{ID: id}, damaged(dir, err)
	}
	if r.ID != id {
		return record{ID: id}, damaged(dir, fmt.Errorf("%s is that of %.128q", recordFile, r.ID))
	}
	image, err := os.Lstat(filepath.Join(dir, imageFile))
	if err != nil || !image.Mode().IsRegular() {
		return r, damaged(dir, fmt.Errorf("%s is missing or not a plain file", imageFile))
	}
	r.Size = image.Size()
	node, err := durable.ReadFile(filepath.Join(dir, nodeFile), maxSmall)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, damaged(dir, err)
	}
	r.Node = string(node)
	return r, nil
}

func damaged(dir string, why error) error {
	return fmt.Errorf("%s %w, nothing was changed: %w; restore what is missing in %s, or delete that directory manually",
		filepath.Base(dir), errDamaged, why, dir)
}

// list returns all records of a kind, ordered by id; a damaged one has at least the id.
func (p *pool) list(k kind) ([]record, error) {
	ids, err := p.ids(k)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", k, err)
	}
	var out []record
	for _, id := range ids {
		r, err := p.get(k, id)
		if errors.Is(err, errMissing) || errors.Is(err, errID) {
			continue
		}
		if err != nil && !errors.Is(err, errDamaged) {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// ids returns the names of all entries of a kind, ordered; those of snapshots that belong to groups included.
func (p *pool) ids(k kind) ([]string, error) {
	dirs := []string{filepath.Join(p.dir, string(k))}
	if k == snapshots {
		found, err := filepath.Glob(filepath.Join(p.dir, string(groups), groupPrefix+"*"))
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
	var out []string
	for i, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if i > 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)) {
			continue // a group that has been deleted since, or something that never was a group
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}
