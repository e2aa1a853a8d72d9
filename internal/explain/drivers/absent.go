package drivers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/volume"
)

// Of returns the driver of a volume; false when it is no driver's.
func Of(v *corev1.PersistentVolume) (note.Driver, bool) {
	if v == nil || v.Spec.CSI == nil {
		return note.Driver{}, false
	}
	return note.Driver{CSI: v.Spec.CSI.Driver, Hosted: note.Hosted(v)}, true
}

// OfPod returns the drivers that a Pod needs.
func OfPod(view cluster.View, p *corev1.Pod) []note.Driver {
	var out []note.Driver
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.CSI != nil {
			out = append(out, note.Driver{CSI: v.CSI.Driver, Hosted: note.HostedInline(v)})
		}
	}
	for _, name := range cluster.ClaimNames(p) {
		claim := cluster.Found(view.Claims, p.Namespace+"/"+name)
		if claim == nil {
			continue
		}
		if s, ok := Of(cluster.Found(view.Volumes, claim.Spec.VolumeName)); ok {
			out = append(out, s)
		}
	}
	return out
}

// Absent says why a driver has not registered on a node, if more is known than
// that: of a host's driver, which the host may know under its CSI name in a
// cluster that was not told of such volumes.
func Absent(view cluster.View, s note.Driver, node string) (volume.Because, bool) {
	n := cluster.Found(view.Nodes, node)
	if n == nil || Registered(view, s.CSI, node) {
		return volume.Because{}, false
	}
	noted := slices.ContainsFunc(view.Nodes.List(), func(n *corev1.Node) bool { _, ok := note.Of(n)[s.CSI]; return ok })
	if !s.Hosted && !noted {
		return volume.Because{}, false
	}
	b := note.Absent(s.CSI, n)
	return b, b.Reason != ""
}

// Broken says why a driver of a host that is registered on a node cannot be used
// there, if that is what a message is about: a version of it may be kept to take
// volumes away with.
func Broken(view cluster.View, s note.Driver, node, message string) (volume.Because, bool) {
	n := cluster.Found(view.Nodes, node)
	if n == nil || note.Of(n)[s.CSI] == "" || !strings.Contains(message, "Unavailable: ") {
		return volume.Because{}, false
	}
	return note.Absent(s.CSI, n), true
}

// BrokenFor is broken for the first such driver that the Pod needs.
func BrokenFor(view cluster.View, p *corev1.Pod, message string) (volume.Because, bool) {
	for _, s := range OfPod(view, p) {
		if b, ok := Broken(view, s, p.Spec.NodeName, message); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// Lacks is absent for the first such driver that the Pod needs on its node.
func Lacks(view cluster.View, p *corev1.Pod, node string) (volume.Because, bool) {
	for _, s := range OfPod(view, p) {
		if b, ok := Absent(view, s, node); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// ControlPlane returns the node in whose process the controllers run; nil in a
// cluster, where that is not known.
func ControlPlane(view cluster.View) *corev1.Node {
	return cluster.First(view.Nodes.List(),
		func(n *corev1.Node) bool { return n.Annotations[volume.AnnControlPlane] != "" })
}

// Uncalled tells of a driver that the controllers cannot call, because it has not
// registered where they run. Where they run is not known in a cluster.
func Uncalled(view cluster.View, s note.Driver) (volume.Because, bool) {
	n := ControlPlane(view)
	if n == nil || Registered(view, s.CSI, n.Name) {
		return volume.Because{}, false
	}
	b, ok := Absent(view, s, n.Name)
	if !ok {
		b = volume.Because{
			Reason: volume.ReasonDriverMissing, Message: fmt.Sprintf("driver %s has not registered on node %s", s.CSI, n.Name),
			Next: "administrator of node " + n.Name,
		}
	}
	b.Message += "; the control plane runs there and calls it to attach, detach and grow volumes of any node"
	return b, true
}

// Registered says whether the driver is registered on the node, or on any
// node when node is empty.
func Registered(view cluster.View, driver, node string) bool {
	has := func(n *storagev1.CSINode) bool {
		return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	}
	if node == "" {
		return slices.ContainsFunc(view.CSINodes.List(), has)
	}
	n := cluster.Found(view.CSINodes, node)
	return n != nil && has(n)
}

// Attached returns how many volumes of a driver are attached to a node.
func Attached(view cluster.View, node, driver string) (count int) {
	for _, a := range view.Attachments.By(cluster.AttachmentsByNode, node) {
		if a.Spec.Attacher == driver {
			count++
		}
	}
	return count
}

// UsesVolumes says whether a Pod uses a claim, or a volume of a driver.
func UsesVolumes(view cluster.View, p *corev1.Pod) bool {
	return len(cluster.ClaimNames(p)) > 0 || len(OfPod(view, p)) > 0
}
