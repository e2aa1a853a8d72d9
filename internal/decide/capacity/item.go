package capacity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Item is what one object is about: the free space of a class in a segment.
type Item struct {
	Class   *storagev1.StorageClass
	Segment topology.Segment
	// Home is where the object is.
	Home Home
}

// Name returns the name of the item's object.
func (i Item) Name() string { return nameOf(i.Class.Provisioner, i.Class.Name, i.Segment) }

// String returns the item as a text for people.
func (i Item) String() string { return "class " + i.Class.Name + " in " + topology.Describe(i.Segment) }

// Key returns the name of the item that an object is about, or "".
func Key(o *storagev1.CSIStorageCapacity) string {
	s, ok := segmentOf(o)
	if !ok {
		return ""
	}
	return nameOf(o.Labels[volume.LabelDriver], o.StorageClassName, s)
}

// Find returns the object of an item, or nil. Of several it returns the one with the item's name,
// or else the oldest.
func Find(i Item, all []*storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	name := i.Name()
	var found *storagev1.CSIStorageCapacity
	for _, o := range all {
		if i.Home.manages(i.Class.Provisioner, o) && Key(o) == name && (found == nil || i.Home.before(o, found)) {
			found = o
		}
	}
	return found
}

// before says whether a is kept rather than b, which is about the same item.
func (h Home) before(a, b *storagev1.CSIStorageCapacity) bool {
	switch {
	case h.isOwn(a) != h.isOwn(b):
		return h.isOwn(a)
	case !a.CreationTimestamp.Equal(&b.CreationTimestamp):
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	case a.Namespace != b.Namespace:
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// segmentOf returns the segment of an object; false if the object selects its nodes in another way.
func segmentOf(o *storagev1.CSIStorageCapacity) (topology.Segment, bool) {
	if o.NodeTopology == nil || len(o.NodeTopology.MatchExpressions) > 0 {
		return nil, false
	}
	return o.NodeTopology.MatchLabels, true
}

func nameOf(driver, class string, s topology.Segment) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q", driver, class)
	for _, k := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(h, " %q=%q", k, s[k])
	}
	return volume.CapacityPrefix + hex.EncodeToString(h.Sum(nil)[:10])
}
