package bridge

import (
	"context"

	flex "volplane.dev/volplane/internal/flex/driver"
)

// putAttaching writes a record that a volume may be attached from now on. A detach of another
// volume that the driver knows by the same name either sees this record or has ended.
func (d *driver) putAttaching(r *record, node string) error {
	defer d.b.names.Hold(d.nameKey(r.DetachName, node))()
	return d.b.records.put(r)
}

// release detaches a volume from a node and removes its record. It does not detach if another
// attached volume has the same name for the driver, because two objects can stand for the same
// data: the last one is detached.
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
