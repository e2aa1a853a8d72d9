package provision

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Origin says where the data are of which a volume is made, if each node has a driver with data of its own. The zero
// value is that of data that are everywhere, or nobody knows where.
type Origin struct {
	// Source names the object with the data.
	Source string
	// Node is the node whose driver has the data; "" if that is not known.
	Node string
	// Affinity are the nodes from which they can be read; nil if it is Node alone.
	Affinity *corev1.VolumeNodeAffinity
}

// Elsewhere returns why the volume of a claim cannot be made on a node, or "".
func (o Origin) Elsewhere(claim string, n *corev1.Node) string {
	switch {
	case o.Node == "" && o.Affinity == nil, o.Node == n.Name,
		o.Affinity != nil && topology.Selects(o.Affinity.Required, n):
		return ""
	case o.Node == "":
		return "the volume of claim " + claim + " is made of " + o.Source + ", which is not there"
	}
	return "the volume of claim " + claim + " is made of " + o.Source + ", which is on node " + o.Node
}

// Origin returns where the source of a claim's data is at a driver, as far as that is known.
func (s Source) Origin(c *corev1.PersistentVolumeClaim, driver string) Origin {
	shot, v := s.Snapshot, s.Volume
	switch {
	case IsSnapshot(c) && shot.Bound && shot.Driver == driver:
		return Origin{Source: "snapshot " + c.Spec.DataSource.Name, Node: shot.Node, Affinity: shot.Affinity}
	case IsClone(c) && s.Claim != nil && v != nil && Owns(s.Claim.UID, v) && v.Spec.CSI != nil &&
		v.Spec.CSI.Driver == driver:
		return Origin{Source: "claim " + c.Spec.DataSource.Name, Node: MadeOn(v), Affinity: v.Spec.NodeAffinity}
	}
	return Origin{}
}

// KeptOn returns the node whose controllers call the driver for a VolumeSnapshotContent, or "", and the nodes from
// which its snapshot can be read, or nil: nodes of one segment have the same data. The content says so even after the
// volume of which the snapshot was taken is gone.
func KeptOn(
	view cluster.View, driver string, content metav1.Object,
) (node string, affinity *corev1.VolumeNodeAffinity) {
	node = cmp.Or(content.GetAnnotations()[volume.AnnProvisionedOn], content.GetLabels()[volume.LabelSnapshotsOf])
	n, known := cluster.Find(view.Nodes, node), cluster.Find(view.CSINodes, node)
	if n == nil || known == nil {
		return node, nil
	}
	return node, topology.Affinity(topology.Places(driver, []*corev1.Node{n}, []*storagev1.CSINode{known}))
}
