package bridge

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

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

// path is that of the record's file below the directory of all, without ending.
func (r *record) path() (string, error) {
	name, err := r.Driver.CSI()
	if err != nil {
		return "", err
	}
	return filepath.Join(name, string(r.Kind), digest(r.Volume+"\x00"+r.Place)), nil
}

// doubtful returns a copy that says of nothing that it is done: mounts may be
// gone, and what else is there is not known.
func (r *record) doubtful() *record {
	out := *r
	if out.Kind != made && out.Step == done {
		out.Step, out.Mounted = mounting, false
		if out.Kind == attached {
			out.Step = attaching
		}
	}
	return &out
}

func recordKind() durable.Kind[record] {
	return durable.Kind[record]{
		Format:   format,
		Most:     maxRecord,
		Path:     (*record).path,
		Clone:    func(r *record) *record { c := *r; return &c },
		Doubtful: (*record).doubtful,
		Boot:     func(r *record) *string { return &r.Boot },
	}
}

// records are all of one bridge. It is safe for concurrent use; the records of
// one volume are changed by one goroutine at a time.
type records struct {
	kept *durable.Records[record]
	host Host
}

// openRecords reads what is there. A file that is no record is moved aside.
func openRecords(dir string, host Host, log *slog.Logger) (*records, error) {
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	kept, aside, err := durable.OpenRecords(dir, boot, recordKind())
	if err != nil {
		return nil, err
	}
	for _, path := range aside {
		log.Error("record cannot be read and was moved aside", "path", path)
	}
	r := &records{kept, host}
	for _, one := range kept.List(isUse) {
		host.Keep(one.Driver, one.Volume)
	}
	return r, nil
}

// isUse says whether the driver is needed for what a record says.
func isUse(r *record) bool { return r.Kind != made }

// get returns a copy of a record, nil when there is none.
func (r *records) get(n decide.Name, k kind, volumeID, at string) *record {
	path, err := (&record{Kind: k, Driver: n, Volume: volumeID, Place: at}).path()
	if err != nil {
		return nil
	}
	return r.kept.Get(path)
}

// of returns copies of the records of a driver, sorted, that match.
func (r *records) of(n decide.Name, match func(*record) bool) []*record {
	out := r.kept.List(func(one *record) bool { return one.Driver == n && match(one) })
	slices.SortFunc(out, func(a, b *record) int { return strings.Compare(a.what(), b.what()) })
	return out
}

// put writes a record that is on the disk when it returns.
func (r *records) put(one *record) error {
	one.Format = format
	had := r.get(one.Driver, one.Kind, one.Volume, one.Place) != nil
	if err := r.kept.Put(one); err != nil {
		return fmt.Errorf("record volume %s: %w", one.Volume, err)
	}
	if !had && isUse(one) {
		r.host.Keep(one.Driver, one.Volume)
	}
	return nil
}

// drop forgets a record. It may be repeated.
func (r *records) drop(one *record) error {
	path, err := one.path()
	if err != nil {
		return err
	}
	if err := r.kept.Drop(path); err != nil {
		return fmt.Errorf("forget volume %s: %w", one.Volume, err)
	}
	if len(r.of(one.Driver, func(o *record) bool { return o.Volume == one.Volume && isUse(o) })) == 0 {
		r.host.Drop(one.Driver, one.Volume)
	}
	return nil
}
