package capacity

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

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

// Find returns the object of an item, or nil. Of several it returns the one with the item's name, otherwise the oldest.
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

// Home is where the objects are. The zero value is that of a control plane.
type Home struct {
	// Namespace is their namespace.
	Namespace string
	// Node is the node whose capacity alone is published: its objects have a label of its own. Empty means all nodes.
	Node string
	// Owner, in the same namespace, is the object with which they are deleted, or nil.
	Owner *metav1.OwnerReference
}

// managedBy returns the label of the objects, as upstream's external-provisioner would give it on the node. A label has
// at most 63 characters, so a hash replaces the rest.
func (h Home) managedBy() string {
	const most, hashed = validation.LabelValueMaxLength, 8
	base := volume.ManagedByProvisioner
	whole := base + "-" + h.Node
	sum := func(of string) string {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(of))
		return fmt.Sprintf("%0*x", hashed, hash.Sum32())
	}
	switch left := most - len(h.Node) - hashed - 2; {
	case h.Node == "":
		return base
	case len(whole) <= most:
		return whole
	case left > 0:
		return base[:left] + "-" + sum(base) + "-" + h.Node
	}
	return base + "-" + sum(whole)
}

// manages says whether an object is the driver's and this home's: of volplane, or of a sidecar that ran before.
func (h Home) manages(driver string, o *storagev1.CSIStorageCapacity) bool {
	return o.Labels[volume.LabelDriver] == driver && o.Labels[volume.LabelManagedBy] == h.managedBy()
}

func (h Home) namespace() string { return cmp.Or(h.Namespace, volume.NamespaceSystem) }

// isOwn says whether an object has the name and namespace that volplane gives it; those of sidecars
// have random names.
func (h Home) isOwn(o *storagev1.CSIStorageCapacity) bool {
	return o.Namespace == h.namespace() && o.Name == Key(o)
}

// owned says whether an object has the wanted owner, and so is deleted with it. An object in another namespace cannot
// have the owner.
func (h Home) owned(o *storagev1.CSIStorageCapacity) bool {
	return h.Owner == nil || o.Namespace != h.namespace() ||
		slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == h.Owner.UID })
}

// own gives an object its owner. An existing controller reference is replaced: there can be only one.
func (h Home) own(o *storagev1.CSIStorageCapacity) {
	if h.owned(o) {
		return
	}
	o.OwnerReferences = append(slices.DeleteFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Controller != nil && *r.Controller
	}), *h.Owner)
}

// ControllerOf returns the reference to the controller of an object, or nil.
func ControllerOf(o metav1.Object) *metav1.OwnerReference {
	r := metav1.GetControllerOf(o)
	if r == nil {
		return nil
	}
	return &metav1.OwnerReference{
		APIVersion: r.APIVersion, Kind: r.Kind, Name: r.Name, UID: r.UID, Controller: r.Controller,
	}
}
