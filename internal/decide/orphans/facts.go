package orphans

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Entry is one volume as its driver lists it.
type Entry struct {
	Handle   string
	Bytes    int64
	Context  map[string]string
	Segments []topology.Segment
	// Nodes are the driver's names of the nodes that it is published to.
	Nodes []string
	// Name is what it was asked for as, if the driver's own records say so.
	Name string
}

// Facts is everything that is looked at for one driver. The order in which they
// were read matters: a volume that is made or deleted meanwhile is neither an
// orphan nor missing.
type Facts struct {
	Driver string
	// Own is the segment of the node where the driver answers, if it has one.
	Own topology.Segment
	// Before are the volume objects as they were first of all; First is the
	// driver's list after that; then Claims and Intents were read, then After,
	// the objects again, and at last Second, the driver's list again.
	Before, After []*corev1.PersistentVolume
	First, Second []Entry
	Claims        []*corev1.PersistentVolumeClaim
	Intents       []*provision.Intent
	// Hidden says that the intents may not be read.
	Hidden bool
	// NodeIDs are the driver's names of the nodes of this cluster.
	NodeIDs map[string]bool
}

// Kind is what a finding is about.
type Kind string

// What is found.
const (
	// Volume is one that its driver has, and no object names.
	Volume Kind = "volume"
	// Object is a volume object whose volume its driver does not have.
	Object Kind = "object"
)

// Finding is one thing that has no counterpart.
type Finding struct {
	Kind   Kind   `json:"kind"`
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Object is the volume object's name; of a volume it is the one that it was
	// made as, if that is known.
	Object string `json:"object,omitempty"`
	// Claim is NAMESPACE/NAME of the claim that it was made for, if known.
	Claim string `json:"claim,omitempty"`
	// By is what its maker calls itself, if known.
	By string `json:"by,omitempty"`
	// Bytes is its size, 0 when the driver does not say.
	Bytes int64 `json:"bytes,omitempty"`
	// Nodes are where it is published, by the driver's names.
	Nodes []string `json:"nodes,omitempty"`
	// Doubt says that it may have somebody after all: it is taken in by force only.
	Doubt   bool          `json:"doubt,omitempty"`
	Reason  volume.Reason `json:"reason"`
	Message string        `json:"message"`
	Next    string        `json:"next,omitempty"`
}

// Plan is what was found at one driver.
type Plan struct {
	Findings []Finding
	// Making is how many volumes are being made, Elsewhere of how many objects
	// the volume lies where this driver does not reach.
	Making, Elsewhere int
}
