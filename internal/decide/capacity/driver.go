package capacity

import (
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Facts is everything that a decision about one driver's objects looks at.
type Facts struct {
	Driver string
	// Reached says that the driver can be asked, Tells that it has
	// GET_CAPACITY.
	Reached, Tells bool
	// Immediate asks for objects of classes whose claims do not wait for a
	// node, too.
	Immediate bool
	Classes   []*storagev1.StorageClass
	// Segments are those of the nodes that the driver is registered on.
	Segments []topology.Segment
	// Objects are those with the driver's label.
	Objects []*storagev1.CSIStorageCapacity
}

// Removal is an object that goes, and why.
type Removal struct {
	Object  *storagev1.CSIStorageCapacity
	Because volume.Because
}

// Plan is what becomes of a driver's objects.
type Plan struct {
	// Items are what the driver is asked about, by their names; none when it
	// cannot be asked.
	Items  map[string]Item
	Delete []Removal
}

// Driver decides about the objects of one driver. Those of others are never
// touched: of another driver, kept by somebody else, or, while the driver is
// not reached from here, of a sidecar that may reach it.
func Driver(f Facts) Plan {
	all := items(f)
	var p Plan
	for _, o := range f.Objects {
		if !managed(f.Driver, o) || !f.Reached && !own(o) {
			continue
		}
		if why := useless(f, all, o); why != "" {
			p.Delete = append(p.Delete, Removal{Object: o, Because: volume.Because{
				Reason:  volume.ReasonCapacityObsolete,
				Message: fmt.Sprintf("object %s/%s is deleted: %s", o.Namespace, o.Name, why),
			}})
		}
	}
	if f.Reached && f.Tells {
		p.Items = all
	}
	return p
}

func items(f Facts) map[string]Item {
	out := map[string]Item{}
	for _, c := range f.Classes {
		if c.Provisioner != f.Driver || !f.Immediate && !bind.BindsLate(c) {
			continue
		}
		for _, s := range f.Segments {
			i := Item{Class: c, Segment: s}
			out[i.Name()] = i
		}
	}
	return out
}

// useless says why an object goes; "" is that it stays.
func useless(f Facts, all map[string]Item, o *storagev1.CSIStorageCapacity) string {
	if f.Reached && !f.Tells {
		return "driver " + f.Driver + " does not tell its capacity"
	}
	if i, ok := all[Key(o)]; ok {
		if kept := Find(i, f.Objects); kept != o {
			return "object " + kept.Namespace + "/" + kept.Name + " tells the same"
		}
		return ""
	}
	at := slices.IndexFunc(f.Classes, func(c *storagev1.StorageClass) bool { return c.Name == o.StorageClassName })
	switch {
	case at < 0:
		return "there is no class " + o.StorageClassName
	case f.Classes[at].Provisioner != f.Driver:
		return "class " + o.StorageClassName + " is of driver " + f.Classes[at].Provisioner
	case !f.Immediate && !bind.BindsLate(f.Classes[at]):
		return "claims of class " + o.StorageClassName + " do not wait for a node"
	}
	if s, ok := segmentOf(o); ok {
		return "no node with driver " + f.Driver + " is in " + describe(s)
	}
	return "its nodes are not chosen by a segment of driver " + f.Driver
}
