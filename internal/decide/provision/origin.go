package provision

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Origin says where the data are of which a volume is made. The zero value is that of data that are everywhere, or of
// which it is not known where they are.
type Origin struct {
	// Source names the object with the data.
	Source string
	// Node is the node whose driver has the data; "" if that is not known.
	Node string
	// Affinity are the nodes from which they can be read; nil if it is Node alone.
	Affinity *corev1.VolumeNodeAffinity
	// Only says that a volume with the data can be made there and nowhere else. Otherwise the driver decides: CSI does
	// not say whether it can copy data to another place.
	Only bool
}

// Has says whether a node is one where the data are, as far as that is known.
func (o Origin) Has(n *corev1.Node) bool {
	return o.Node == "" && o.Affinity == nil || o.Node == n.Name ||
		o.Affinity != nil && topology.Selects(o.Affinity.Required, n)
}

// Elsewhere returns why the volume of a claim cannot be made on a node, or "".
func (o Origin) Elsewhere(claim string, n *corev1.Node) string {
	switch {
	case !o.Only, o.Has(n):
		return ""
	case o.Node == "":
		return "the volume of claim " + claim + " is created from " + o.Source + ", which does not exist"
	}
	return "the volume of claim " + claim + " is created from " + o.Source + ", which is on node " + o.Node
}

// Origin returns where the source of a claim's data is at a driver, as far as that is known. local says that each node
// has a driver with data of its own.
func (s Source) Origin(c *corev1.PersistentVolumeClaim, driver string, local bool) (o Origin) {
	shot, v := s.Snapshot, s.Volume
	switch {
	case IsSnapshot(c) && shot.Bound && shot.Driver == driver:
		o = shot.Kept
		o.Source = "snapshot " + cluster.SourceOf(c).Name
	case IsClone(c) && s.Claim != nil && v != nil && Owns(s.Claim.UID, v) && v.Spec.CSI != nil &&
		v.Spec.CSI.Driver == driver:
		o = Origin{Source: "claim " + cluster.SourceOf(c).Name, Node: MadeOn(v), Affinity: v.Spec.NodeAffinity}
	default:
		return o
	}
	if o.Only = o.Only || local; !local {
		o.Node = ""
	}
	return o
}

// keptOn returns where the snapshot of a VolumeSnapshotContent is at its driver: on the node whose controllers call the
// driver, if the content names one, and from where the content says by its nodeAffinity; if it does not, from nodes in
// the segment of that node, which have the same data. The volume of which the snapshot was taken may be gone.
func keptOn(view cluster.View, content *cluster.VolumeSnapshotContent) Origin {
	o := Origin{Node: cmp.Or(content.Annotations[volume.AnnProvisionedOn], content.Labels[volume.LabelSnapshotsOf])}
	if affinity := content.Spec.NodeAffinity; len(affinity) > 0 {
		o.Affinity, o.Only = topology.AffinityOf(affinity), true
		return o
	}
	n, known := cluster.Find(view.Nodes, o.Node), cluster.Find(view.CSINodes, o.Node)
	if n != nil && known != nil {
		o.Affinity = topology.Affinity(topology.Places(content.Spec.Driver, []*corev1.Node{n}, []*storagev1.CSINode{known}))
	}
	return o
}
