package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/volume"
)

// sourceOf returns the driver of a volume; false when it is no driver's.
func sourceOf(v *corev1.PersistentVolume) (note.Driver, bool) {
	if v == nil || v.Spec.CSI == nil {
		return note.Driver{}, false
	}
	return note.Driver{CSI: v.Spec.CSI.Driver, Hosted: note.Hosted(v)}, true
}

// source returns the driver of the volume, or of the class that is to have one
// made.
func (f facts) source() note.Driver {
	if s, ok := sourceOf(f.Volume); ok {
		return s
	}
	return note.Driver{CSI: f.driverName()}
}

// sourcesOf returns the drivers that a Pod needs.
func (k known) sourcesOf(p *corev1.Pod) []note.Driver {
	var out []note.Driver
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.CSI != nil {
			out = append(out, note.Driver{CSI: v.CSI.Driver, Hosted: note.HostedInline(v)})
		}
	}
	for _, name := range cluster.ClaimNames(p) {
		claim := cluster.Found(k.view.Claims, p.Namespace+"/"+name)
		if claim == nil {
			continue
		}
		if s, ok := sourceOf(cluster.Found(k.view.Volumes, claim.Spec.VolumeName)); ok {
			out = append(out, s)
		}
	}
	return out
}

// absent says why a driver has not registered on a node, if more is known than
// that: of a host's driver, which the host may know under its CSI name in a
// cluster that was not told of such volumes.
func (k known) absent(s note.Driver, node string) (volume.Because, bool) {
	n := k.node(node)
	if n == nil || k.registered(s.CSI, node) {
		return volume.Because{}, false
	}
	noted := slices.ContainsFunc(k.Nodes, func(n *corev1.Node) bool { _, ok := note.Of(n)[s.CSI]; return ok })
	if !s.Hosted && !noted {
		return volume.Because{}, false
	}
	b := note.Absent(s.CSI, n)
	return b, b.Reason != ""
}

// broken says why a driver of a host that is registered on a node cannot be used
// there, if that is what a message is about: a version of it may be kept to take
// volumes away with.
func (k known) broken(s note.Driver, node, message string) (volume.Because, bool) {
	n := k.node(node)
	if n == nil || note.Of(n)[s.CSI] == "" || !strings.Contains(message, "Unavailable: ") {
		return volume.Because{}, false
	}
	return note.Absent(s.CSI, n), true
}

// brokenFor is broken for the first such driver that the Pod needs.
func (k known) brokenFor(p *corev1.Pod, message string) (volume.Because, bool) {
	for _, s := range k.sourcesOf(p) {
		if b, ok := k.broken(s, p.Spec.NodeName, message); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// lacks is absent for the first such driver that the Pod needs on its node.
func (k known) lacks(p *corev1.Pod, node string) (volume.Because, bool) {
	for _, s := range k.sourcesOf(p) {
		if b, ok := k.absent(s, node); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// homeless tells of a Pod that found no node, and what to do when that is for
// want of a driver of a host.
func (k known) homeless(p *corev1.Pod, message string) chain.Link {
	if short, unknown := capacity.Short(message); short {
		return k.roomless(p, message, unknown)
	}
	next := "user"
	for _, s := range k.sourcesOf(p) {
		elsewhere := s.Elsewhere(message)
		if elsewhere == "" {
			continue
		}
		if b, ok := k.lacks(p, k.only()); ok {
			message, next = "0/1 nodes are available: "+b.Message, b.Next
			break
		}
		message += elsewhere
		next = "administrator of a node"
		break
	}
	return k.unschedulable(p, message, next)
}

// only returns the name of the only node; "" when there are more.
func (k known) only() string {
	if len(k.Nodes) != 1 {
		return ""
	}
	return k.Nodes[0].Name
}

// controlPlane returns the node in whose process the controllers run; nil in a
// cluster, where that is not known.
func (k known) controlPlane() *corev1.Node {
	return cluster.First(k.Nodes, func(n *corev1.Node) bool { return n.Annotations[volume.AnnControlPlane] != "" })
}

// uncalled tells of a driver that the controllers cannot call, because it has not
// registered where they run. Where they run is not known in a cluster.
func (k known) uncalled(s note.Driver) (volume.Because, bool) {
	n := k.controlPlane()
	if n == nil || k.registered(s.CSI, n.Name) {
		return volume.Because{}, false
	}
	b, ok := k.absent(s, n.Name)
	if !ok {
		b = volume.Because{
			Reason: volume.ReasonDriverMissing, Message: fmt.Sprintf("driver %s has not registered on node %s", s.CSI, n.Name),
			Next: "administrator of node " + n.Name,
		}
	}
	b.Message += "; the control plane runs there and calls it to attach, detach and grow volumes of any node"
	return b, true
}
