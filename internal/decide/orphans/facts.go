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
	// Nodes are the driver's ids of the nodes that the volume is published to.
	Nodes []string
	// Name is the name with which the volume was created, if the driver's own records have it.
	Name string
}

// Facts is what the decision about one driver depends on. The order of the reads matters: a volume
// that is created or deleted meanwhile is neither an orphan nor missing.
type Facts struct {
	Driver string
	// Own is the topology segment of the driver's node, if it has one.
	Own topology.Segment
	// Before are the PersistentVolumes, which were read first. First is the driver's list, read
	// after that. Then Claims and Intents were read, then the PersistentVolumes once more (After),
	// and at last the driver's list (Second).
	Before, After []*corev1.PersistentVolume
	First, Second []Entry
	Claims        []*corev1.PersistentVolumeClaim
	Intents       []*provision.Intent
	// Hidden says that the intents could not be read.
	Hidden bool
	// NodeIDs are the driver's ids of the nodes of this cluster.
	NodeIDs map[string]bool
}

// Kind is the kind of a finding.
type Kind string

// Kinds of findings.
const (
	// Volume: the driver has a volume that no object names.
	Volume Kind = "volume"
	// Object: the driver does not have the volume of a PersistentVolume.
	Object Kind = "object"
)

// Finding is one volume or object without a counterpart.
type Finding struct {
	Kind   Kind   `json:"kind"`
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Object is the name of the PersistentVolume, or the name with which the volume was created, if
	// known.
	Object string `json:"object,omitempty"`
	// Claim is "namespace/name" of the claim that the volume was created for, if known.
	Claim string `json:"claim,omitempty"`
	// By is the identity of the provisioner that created the volume, if known.
	By string `json:"by,omitempty"`
	// Bytes is the size of the volume; 0 if the driver does not report it.
	Bytes int64 `json:"bytes,omitempty"`
	// Nodes are the driver's ids of the nodes that the volume is published to.
	Nodes []string `json:"nodes,omitempty"`
	// Doubt says that the volume may be in use by somebody: it is adopted with force only.
	Doubt   bool          `json:"doubt,omitempty"`
	Reason  volume.Reason `json:"reason"`
	Message string        `json:"message"`
	Next    volume.Actor  `json:"next,omitzero"`
}

// Plan is the result for one driver.
type Plan struct {
	Findings []Finding
	// Making is the number of volumes that are being created. Elsewhere is the number of objects
	// whose volume is in a segment that this driver cannot reach.
	Making, Elsewhere int
}
