package bridge

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
)

// kind says what a record is about; it is the name of a directory, too.
type kind string

const (
	// made is a volume of CreateVolume, attached one at a node, staged and
	// published one at a path.
	made      kind = "made"
	attached  kind = "attached"
	staged    kind = "staged"
	published kind = "published"
)

// step is how far a volume may have come: all effects up to it may be there.
type step int

const (
	nothing step = iota
	// attaching: the driver may have attached it to the node.
	attaching
	// device: its device may be mounted.
	device
	// mounting: it may be mounted in the private directory, and at the target.
	mounting
	// done: all of it is there, as the request wants it.
	done
)

// format is the version of records.
const format = 1

// maxRecord bounds the size of a record that is read.
const maxRecord = 1 << 20

// record is what has to be known of a volume at one place to grow it and to take
// it away. It holds no secret.
type record struct {
	Format int         `json:"format"`
	Kind   kind        `json:"kind"`
	Driver decide.Name `json:"driver"`
	// Volume is the CSI id, Place the node or the path that it is at.
	Volume string `json:"volume"`
	Place  string `json:"place,omitempty"`
	Step   step   `json:"step"`
	// Boot is the host's boot that Step is of: mounts do not outlive it.
	Boot string `json:"boot,omitempty"`

	// Name is the volume's towards the driver, DetachName the one that detach
	// gets.
	Name       string            `json:"name,omitempty"`
	DetachName string            `json:"detachName,omitempty"`
	FSType     string            `json:"fsType,omitempty"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Options    map[string]string `json:"options,omitempty"`
	Pod        decide.PodInfo    `json:"pod,omitzero"`
	// Inline says that a Pod names the volume itself: nobody but us attaches it.
	Inline bool `json:"inline,omitempty"`
	// Device is what the driver called the device, DeviceDir where it is
	// mounted, and Dir where the volume is.
	Device    string `json:"device,omitempty"`
	DeviceDir string `json:"deviceDir,omitempty"`
	Dir       string `json:"dir,omitempty"`
	// Mounted says that something was mounted there when all was done.
	Mounted bool `json:"mounted,omitempty"`
	// Mounts is how many paths, at Place and below it, something was mounted at
	// then.
	Mounts int `json:"mounts,omitempty"`
	// Bytes is the size that a made volume was asked for with.
	Bytes int64 `json:"bytes,omitempty"`
}

// volume is what the driver is told of it.
func (r *record) volume() decide.Volume {
	return decide.Volume{Name: r.Name, FSType: r.FSType, ReadOnly: r.ReadOnly, Options: r.Options, Pod: r.Pod}
}

// like says whether two records are of the same volume in the same way: an object
// that was made anew can have the name of one that stood for other data.
func (r *record) like(o *record) bool {
	return r.FSType == o.FSType && r.ReadOnly == o.ReadOnly && maps.Equal(r.Options, o.Options)
}

// what says it in words, for an order and for people.
func (r *record) what() string { return r.Volume + " " + string(r.Kind) + " at " + r.Place }

// file is the record's path below the directory of all.
func (r *record) file() (string, error) {
	name, err := r.Driver.CSI()
	if err != nil {
		return "", err
	}
	return filepath.Join(name, string(r.Kind), digest(r.Volume+"\x00"+r.Place)+".json"), nil
}

// records are all of one bridge. It is safe for concurrent use; the records of
// one volume are changed by one goroutine at a time.
type records struct {
	dir, boot string
	host      Host

	mu  sync.Mutex
	all map[string]*record
}

// openRecords reads what is there. A file that is no record is moved aside.
func openRecords(dir string, host Host, log *slog.Logger) (*records, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the id of this boot: %w", err)
	}
	r := &records{dir: dir, boot: strings.TrimSpace(string(boot)), host: host, all: map[string]*record{}}
	files, err := filepath.Glob(filepath.Join(dir, "*/*/*.json"))
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	// What a killed bridge had not finished to write: the effect that it was to
	// precede has not come.
	drafts, err := filepath.Glob(filepath.Join(dir, "*/*/*.json"+durable.Draft))
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	for _, path := range drafts {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove unfinished record: %w", err)
		}
	}
	for _, path := range files {
		one, err := readRecord(path)
		if err == nil {
			var at string
			if at, err = one.file(); err == nil && filepath.Join(dir, at) != path {
				err = errors.New("it is not a record of this place")
			}
		}
		if err != nil {
			log.Error("record cannot be read and is set aside", "path", path, "err", err)
			if err := os.Rename(path, path+".unreadable"); err != nil {
				return nil, fmt.Errorf("set record aside: %w", err)
			}
			continue
		}
		r.keep(path, one)
	}
	return r, nil
}

func readRecord(path string) (*record, error) {
	r := &record{}
	if err := durable.ReadJSON(path, maxRecord, r); err != nil {
		return nil, err
	}
	if r.Format != format {
		return nil, fmt.Errorf("it has format %d, %d is known", r.Format, format)
	}
	return r, nil
}

func (r *records) keep(path string, one *record) {
	r.mu.Lock()
	_, had := r.all[path]
	r.all[path] = one
	r.mu.Unlock()
	if !had && one.Kind != made {
		r.host.Keep(one.Driver, one.Volume)
	}
}

// needed says whether a driver is needed for a volume; r.mu is held.
func (r *records) needed(n decide.Name, volumeID string) bool {
	for _, one := range r.all {
		if one.Driver == n && one.Volume == volumeID && one.Kind != made {
			return true
		}
	}
	return false
}

// get returns a copy of a record, nil when there is none. One of an earlier boot
// says that nothing is done: mounts are gone, what else is there is not known.
func (r *records) get(n decide.Name, k kind, volumeID, at string) *record {
	key := &record{Kind: k, Driver: n, Volume: volumeID, Place: at}
	file, err := key.file()
	if err != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.all[filepath.Join(r.dir, file)]
	if one == nil {
		return nil
	}
	return r.seen(one)
}

func (r *records) seen(one *record) *record {
	out := *one
	if out.Boot != r.boot && out.Kind != made && out.Step == done {
		out.Step, out.Mounted = mounting, false
		if out.Kind == attached {
			out.Step = attaching
		}
	}
	return &out
}

// of returns copies of the records of a driver, sorted, that match.
func (r *records) of(n decide.Name, match func(*record) bool) []*record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*record
	for _, one := range r.all {
		if one.Driver != n {
			continue
		}
		if one = r.seen(one); match(one) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b *record) int { return strings.Compare(a.what(), b.what()) })
	return out
}

// put writes a record that is on the disk when it returns.
func (r *records) put(one *record) error {
	one.Format, one.Boot = format, r.boot
	file, err := one.file()
	if err != nil {
		return err
	}
	path := filepath.Join(r.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("record volume %s: %w", one.Volume, err)
	}
	if err := durable.WriteJSON(path, one); err != nil {
		return fmt.Errorf("record volume %s: %w", one.Volume, err)
	}
	kept := *one
	r.keep(path, &kept)
	return nil
}

// drop forgets a record. It may be repeated.
func (r *records) drop(one *record) error {
	file, err := one.file()
	if err != nil {
		return err
	}
	path := filepath.Join(r.dir, file)
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("forget volume %s: %w", one.Volume, err)
	}
	r.mu.Lock()
	delete(r.all, path)
	needed := r.needed(one.Driver, one.Volume)
	r.mu.Unlock()
	if !needed {
		r.host.Drop(one.Driver, one.Volume)
	}
	return nil
}
