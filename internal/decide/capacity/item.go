package capacity

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Item is what one object tells of: how much of a class there is in a segment.
type Item struct {
	Class   *storagev1.StorageClass
	Segment topology.Segment
}

// Name returns the name of the item's object.
func (i Item) Name() string { return nameOf(i.Class.Provisioner, i.Class.Name, i.Segment) }

// String names the item for people.
func (i Item) String() string { return "class " + i.Class.Name + " in " + describe(i.Segment) }

// Key returns the name of the item that an object tells of; "" is none.
func Key(o *storagev1.CSIStorageCapacity) string {
	s, ok := segmentOf(o)
	if !ok {
		return ""
	}
	return nameOf(o.Labels[volume.LabelDriver], o.StorageClassName, s)
}

// Find returns the object that tells of the item: of several the one whose name
// says so, or else the oldest one. It returns nil when there is none.
func Find(i Item, all []*storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	name := i.Name()
	var found *storagev1.CSIStorageCapacity
	for _, o := range all {
		if managed(i.Class.Provisioner, o) && Key(o) == name && (found == nil || before(o, found)) {
			found = o
		}
	}
	return found
}

// before says which of two objects that tell the same is kept.
func before(a, b *storagev1.CSIStorageCapacity) bool {
	switch {
	case own(a) != own(b):
		return own(a)
	case !a.CreationTimestamp.Equal(&b.CreationTimestamp):
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	case a.Namespace != b.Namespace:
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
}

// managed says whether an object is the driver's provisioner's to keep, be it
// this one or a sidecar that was there before.
func managed(driver string, o *storagev1.CSIStorageCapacity) bool {
	return o.Labels[volume.LabelDriver] == driver && o.Labels[volume.LabelManagedBy] == volume.ManagedByProvisioner
}

// own says whether an object has the name and the place that we give; a
// sidecar's names are random.
func own(o *storagev1.CSIStorageCapacity) bool {
	return o.Namespace == volume.NamespaceSystem && o.Name == Key(o)
}

// segmentOf returns the segment that an object tells of; false when its nodes
// are chosen otherwise.
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

func describe(s topology.Segment) string {
	if len(s) == 0 {
		return "all places"
	}
	parts := make([]string, 0, len(s))
	for _, k := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, k+"="+s[k])
	}
	return strings.Join(parts, ",")
}
