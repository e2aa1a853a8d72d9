package identity

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// PlanesGroup is the group of the identities of node agents in the processes of control planes. Only they may say of
// their Nodes that a control plane runs there.
const PlanesGroup = "system:volplane:planes"

// IsPlane says whether a control plane runs on a node.
func IsPlane(n *corev1.Node) bool { return n.Annotations[volume.AnnControlPlane] != "" }

// FirstPlane returns the name of the node of the first control plane: that with the oldest Node. So another one follows
// only when a user deletes that Node, and not when the host is away. It is empty if there is none.
func FirstPlane(nodes []*corev1.Node) string {
	planes := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return !IsPlane(n) })
	if len(planes) == 0 {
		return ""
	}
	return slices.MinFunc(planes, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}).Name
}
