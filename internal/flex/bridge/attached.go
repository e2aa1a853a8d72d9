package bridge

import (
	"context"
	"sync"

	flex "volplane.dev/volplane/internal/flex/driver"
)

// putAttaching writes down that a volume may be attached from now on. Who is about
// to detach another one that the driver knows by the same name sees it, or has
// ended.
func (d *driver) putAttaching(r *record, node string) error {
	defer d.b.names.hold(d.nameKey(r.DetachName, node))()
	return d.b.records.put(r)
}

// release detaches a volume from a node and forgets it, unless the driver knows
// another one by the name that is attached there still: two objects can stand for
// the same data. Who detaches the last one detaches it.
func (d *driver) release(ctx context.Context, now *flex.Driver, r *record, name, node string) error {
	defer d.b.names.hold(d.nameKey(name, node))()
	others := d.b.records.of(d.name, func(o *record) bool {
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
	return d.b.records.drop(r)
}

func (d *driver) nameKey(name, node string) string { return d.csi + "\x00" + name + "\x00" + node }

// locks are one for each key that somebody holds. The zero locks is ready.
type locks struct {
	mu  sync.Mutex
	all map[string]*lock
}

type lock struct {
	sync.Mutex
	// users are who holds it and who waits for it.
	users int
}

// hold waits until nobody else holds the key, and returns what ends that.
func (l *locks) hold(key string) (end func()) {
	l.mu.Lock()
	if l.all == nil {
		l.all = map[string]*lock{}
	}
	one := l.all[key]
	if one == nil {
		one = &lock{}
		l.all[key] = one
	}
	one.users++
	l.mu.Unlock()
	one.Lock()
	return func() {
		one.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.all, key)
		}
	}
}
