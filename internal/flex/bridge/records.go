package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/durable"
	flex "volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
)

// kind says what a record is about. It is also the name of the directory of such records.
type kind string

const (
	// A record of kind made is about a volume of CreateVolume, attached about its attachment to a
	// node, staged and published about its path.
	made      kind = "made"
	attached  kind = "attached"
	staged    kind = "staged"
	published kind = "published"
)

// step is the last step whose effects may exist; those of all steps before may exist, too.
type step int

const (
	nothing step = iota
	// attaching: the driver may have attached the volume to the node.
	attaching
	// device: the volume's device may be mounted.
	device
	// mounting: the volume may be mounted in the private directory and at the target.
	mounting
	// done: everything exists, as requested.
	done
)

// format is the format version of records.
const format = 1

// maxRecord is the size limit of a record that is read, in bytes.
const maxRecord = 1 << 20

// record is what must be known about a volume at one place to expand or undo it. It holds no secret.
type record struct {
	Format int         `json:"format"`
	Kind   kind        `json:"kind"`
	Driver decide.Name `json:"driver"`
	// Volume is the CSI volume id. Place is the node or the path that the record is about.
	Volume string `json:"volume"`
	Place  string `json:"place,omitempty"`
	Step   step   `json:"step"`
	// Boot is the boot id of the host when Step was written: mounts do not survive a reboot.
	Boot string `json:"boot,omitempty"`

	// Name is the volume's name in calls of the driver, DetachName its name in the call of detach.
	Name       string            `json:"name,omitempty"`
	DetachName string            `json:"detachName,omitempty"`
	FSType     string            `json:"fsType,omitempty"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Options    map[string]string `json:"options,omitempty"`
	Pod        decide.PodInfo    `json:"pod,omitzero"`
	// Inline says that a Pod itself names the volume: then the bridge attaches it.
	Inline bool `json:"inline,omitempty"`
	// Device is the device as the driver named it, DeviceDir the path at which it is mounted, and
	// Dir the path at which the volume is mounted.
	Device    string `json:"device,omitempty"`
	DeviceDir string `json:"deviceDir,omitempty"`
	Dir       string `json:"dir,omitempty"`
	// Mounted says that something was mounted at Dir when Step became done.
	Mounted bool `json:"mounted,omitempty"`
	// Mounts is how many mount points there were at and below Place then.
	Mounts int `json:"mounts,omitempty"`
	// Bytes is the size of a created volume, as requested.
	Bytes int64 `json:"bytes,omitempty"`
}

// volume returns the volume as it is passed to the driver.
func (r *record) volume() decide.Volume {
	return decide.Volume{Name: r.Name, FSType: r.FSType, ReadOnly: r.ReadOnly, Options: r.Options, Pod: r.Pod}
}

// sameUse says whether two records are about the same volume with the same use. The name alone is
// not enough: a new object can have the name of a deleted one that stood for other data.
func (r *record) sameUse(o *record) bool {
	return r.FSType == o.FSType && r.ReadOnly == o.ReadOnly && maps.Equal(r.Options, o.Options)
}

// describe describes the record for people, and is the key to sort by.
func (r *record) describe() string { return r.Volume + " " + string(r.Kind) + " at " + r.Place }

// path returns the path of the record's file below the directory of records, without extension.
func (r *record) path() (string, error) {
	name, err := r.Driver.CSI()
	if err != nil {
		return "", err
	}
	return filepath.Join(name, string(r.Kind), digest(r.Volume+"\x00"+r.Place)), nil
}

// afterReboot returns a copy whose step is not done, for use after a reboot: mounts are gone, and the rest is unknown.
func (r *record) afterReboot() *record {
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
		Format:    format,
		Most:      maxRecord,
		Path:      (*record).path,
		Clone:     func(r *record) *record { c := *r; return &c },
		Uncertain: (*record).afterReboot,
		Boot:      func(r *record) *string { return &r.Boot },
	}
}

// records holds all records of a bridge. It is safe for concurrent use; but the records of one
// volume must be changed by one goroutine at a time.
type records struct {
	store *durable.Records[record]
	host  *host.Host
}

// openRecords reads the records, and logs the files that cannot be read.
func openRecords(dir string, h *host.Host, log *slog.Logger) (*records, error) {
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	kept, aside, err := durable.OpenRecords(dir, boot, recordKind())
	if err != nil {
		return nil, err
	}
	for _, path := range aside {
		log.Error("record cannot be read", "path", path)
	}
	r := &records{kept, h}
	for _, one := range kept.List(isUse) {
		h.Keep(one.Driver, one.Volume)
	}
	return r, nil
}

// isUse says whether a record is about a use of a volume, which needs the driver.
func isUse(r *record) bool { return r.Kind != made }

// get returns a copy of a record, or nil.
func (r *records) get(n decide.Name, k kind, volumeID, at string) *record {
	path, err := (&record{Kind: k, Driver: n, Volume: volumeID, Place: at}).path()
	if err != nil {
		return nil
	}
	return r.store.Get(path)
}

// list returns copies of a driver's records that match, sorted.
func (r *records) list(n decide.Name, match func(*record) bool) []*record {
	out := r.store.List(func(one *record) bool { return one.Driver == n && match(one) })
	slices.SortFunc(out, func(a, b *record) int { return strings.Compare(a.describe(), b.describe()) })
	return out
}

// put writes a record, durably. It may be repeated.
func (r *records) put(one *record) error {
	one.Format = format
	had := r.get(one.Driver, one.Kind, one.Volume, one.Place) != nil
	if err := r.store.Put(one); err != nil {
		return fmt.Errorf("record volume %s: %w", one.Volume, err)
	}
	if !had && isUse(one) {
		r.host.Keep(one.Driver, one.Volume)
	}
	return nil
}

// remove removes a record. It may be repeated.
func (r *records) remove(one *record) error {
	path, err := one.path()
	if err != nil {
		return err
	}
	if err := r.store.Drop(path); err != nil {
		return fmt.Errorf("forget volume %s: %w", one.Volume, err)
	}
	if len(r.list(one.Driver, func(o *record) bool { return o.Volume == one.Volume && isUse(o) })) == 0 {
		r.host.Drop(one.Driver, one.Volume)
	}
	return nil
}

// putAttaching writes a record that a volume may be attached from now on. A detach of another
// volume that the driver knows by the same name either sees this record or has ended.
func (d *driver) putAttaching(r *record, node string) error {
	defer d.b.names.Hold(d.nameKey(r.DetachName, node))()
	return d.b.records.put(r)
}

// release detaches a volume from a node and removes its record. It does not detach if another attached volume has the
// same name for the driver, because two objects can stand for the same data: the last one is detached.
func (d *driver) release(ctx context.Context, now *flex.Driver, r *record, name, node string) error {
	defer d.b.names.Hold(d.nameKey(name, node))()
	others := d.b.records.list(d.name, func(o *record) bool {
		at := o.Place
		if o.Kind == published {
			at = d.b.Node
		}
		own := o.Kind == r.Kind && o.Volume == r.Volume && o.Place == r.Place
		return !own && o.DetachName == name && at == node
	})
	if len(others) == 0 {
		if err := now.Detach(ctx, name, node); err != nil {
			return err
		}
	}
	return d.b.records.remove(r)
}

func (d *driver) nameKey(name, node string) string { return d.csi + "\x00" + name + "\x00" + node }
