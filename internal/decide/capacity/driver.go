package capacity

import (
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Facts is what the decision about one driver's objects depends on.
type Facts struct {
	Driver string
	// Reached says whether the driver can be called, and Reports whether it has the capability GET_CAPACITY.
	Reached, Reports bool
	// Immediate says that classes with immediate binding have objects, too.
	Immediate bool
	Classes   []*storagev1.StorageClass
	// Segments are the topology segments of the nodes on which the driver is registered and that can be queried here.
	Segments []topology.Segment
	// Elsewhere are the segments that other processes query. They maintain the objects for these.
	Elsewhere []topology.Segment
	// Guest means that another process deletes the objects of segments that have no nodes left.
	Guest bool
	// Objects are the objects with the driver's label.
	Objects []*storagev1.CSIStorageCapacity
	// Home is where new objects are made.
	Home Home
}

// Removal is an object to delete, and why.
type Removal struct {
	Object  *storagev1.CSIStorageCapacity
	Because volume.Because
}

// Plan is the decision about a driver's objects.
type Plan struct {
	// Items are the items that need a call of the driver, by name; none if it cannot be called.
	Items  map[string]Item
	Delete []Removal
}

// Driver decides about the objects of one driver. Other objects are never changed: those of another
// driver, those that another component maintains, and, while the driver cannot be called from here,
// those of a sidecar that may be able to.
func Driver(f Facts) Plan {
	all := items(f)
	var p Plan
	for _, o := range f.Objects {
		if !f.Home.manages(f.Driver, o) || !f.Reached && !f.Home.isOwn(o) || f.keptElsewhere(o) {
			continue
		}
		if why := obsoleteBecause(f, all, o); why != "" {
			p.Delete = append(p.Delete, Removal{Object: o, Because: volume.Because{
				Reason:  volume.ReasonCapacityObsolete,
				Message: fmt.Sprintf("object %s/%s is deleted: %s", o.Namespace, o.Name, why),
			}})
		}
	}
	if f.Reached && f.Reports {
		p.Items = all
	}
	return p
}

// keptElsewhere says whether another process keeps an object.
func (f Facts) keptElsewhere(o *storagev1.CSIStorageCapacity) bool {
	s, _ := segmentOf(o)
	is := func(t topology.Segment) bool { return maps.Equal(s, t) }
	return slices.ContainsFunc(f.Elsewhere, is) || f.Guest && !slices.ContainsFunc(f.Segments, is)
}

func items(f Facts) map[string]Item {
	out := map[string]Item{}
	for _, c := range f.Classes {
		if c.Provisioner != f.Driver || !f.Immediate && !bind.BindsLate(c) {
			continue
		}
		for _, s := range f.Segments {
			i := Item{Class: c, Segment: s, Home: f.Home}
			out[i.Name()] = i
		}
	}
	return out
}

// obsoleteBecause returns why an object must be deleted, or "".
func obsoleteBecause(f Facts, all map[string]Item, o *storagev1.CSIStorageCapacity) string {
	if f.Reached && !f.Reports {
		return "driver " + f.Driver + " does not report its capacity"
	}
	if i, ok := all[Key(o)]; ok {
		if kept := Find(i, f.Objects); kept != o {
			return "object " + kept.Namespace + "/" + kept.Name + " reports the same"
		}
		return ""
	}
	at := slices.IndexFunc(f.Classes, func(c *storagev1.StorageClass) bool { return c.Name == o.StorageClassName })
	switch {
	case at < 0:
		return "there is no class " + o.StorageClassName
	case f.Classes[at].Provisioner != f.Driver:
		return "class " + o.StorageClassName + " is for driver " + f.Classes[at].Provisioner
	case !f.Immediate && !bind.BindsLate(f.Classes[at]):
		return "claims of class " + o.StorageClassName + " do not wait for a node"
	}
	if s, ok := segmentOf(o); ok {
		return "no node with driver " + f.Driver + " is in " + topology.Describe(s)
	}
	return "its nodes are not chosen by a segment of driver " + f.Driver
}
