package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// source is a driver that a Pod needs; flex says that it is FlexVolume's, by the
// word of whoever wrote the volume.
type source struct {
	driver string
	flex   bool
}

// name returns the driver's name as its users know it.
func (s source) name() string {
	if name, err := flex.ParseCSI(s.driver); err == nil && s.flex {
		return name.String()
	}
	return s.driver
}

// String returns the driver in a sentence.
func (s source) String() string {
	if s.flex {
		return "FlexVolume driver " + s.name()
	}
	return "driver " + s.name()
}

// next is the driver as the one who acts next.
func (s source) next() string {
	if s.flex {
		return s.String()
	}
	return s.driver
}

// sourceOf returns the driver of a volume; false when it is no driver's.
func sourceOf(v *corev1.PersistentVolume) (source, bool) {
	if v == nil || v.Spec.CSI == nil {
		return source{}, false
	}
	return source{v.Spec.CSI.Driver, v.Spec.FlexVolume != nil}, true
}

// source returns the driver of the volume, or of the class that is to have one
// made.
func (f facts) source() source {
	if s, ok := sourceOf(f.Volume); ok {
		return s
	}
	return source{driver: f.driverName()}
}

// sourcesOf returns the drivers that a Pod needs.
func (k known) sourcesOf(p *corev1.Pod) []source {
	var out []source
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.CSI != nil {
			out = append(out, source{v.CSI.Driver, v.FlexVolume != nil})
		}
	}
	for _, name := range cluster.ClaimNames(p) {
		claim := found(k.view.Claims, p.Namespace+"/"+name)
		if claim == nil {
			continue
		}
		if s, ok := sourceOf(found(k.view.Volumes, claim.Spec.VolumeName)); ok {
			out = append(out, s)
		}
	}
	return out
}

// absent says why a driver has not registered on a node, if more is known than
// that: of a FlexVolume's driver, which a bridge may know under its CSI name in a
// cluster that was not told of FlexVolumes.
func (k known) absent(s source, node string) (volume.Because, bool) {
	n := k.node(node)
	if n == nil || k.registered(s.driver, node) {
		return volume.Because{}, false
	}
	told := slices.ContainsFunc(k.Nodes, func(n *corev1.Node) bool { _, ok := flex.Told(n)[s.driver]; return ok })
	if !s.flex && !told {
		return volume.Because{}, false
	}
	b := flex.Absent(s.driver, n)
	return b, b.Reason != ""
}

// broken says why a FlexVolume driver that is registered on a node cannot be used
// there, if that is what a message is about: a version of it may be kept to take
// volumes away with.
func (k known) broken(s source, node, message string) (volume.Because, bool) {
	n := k.node(node)
	if n == nil || flex.Told(n)[s.driver] == "" || !strings.Contains(message, "Unavailable: ") {
		return volume.Because{}, false
	}
	return flex.Absent(s.driver, n), true
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
// want of a FlexVolume driver.
func (k known) homeless(p *corev1.Pod, message string) Link {
	if short, unknown := capacity.Short(message); short {
		return k.roomless(p, message, unknown)
	}
	next := "user"
	for _, s := range k.sourcesOf(p) {
		name, err := flex.ParseCSI(s.driver)
		if err != nil || !s.flex || !strings.Contains(message, name.String()) {
			continue
		}
		if b, ok := k.lacks(p, k.only()); ok {
			message, next = "0/1 nodes are available: "+b.Message, b.Next
			break
		}
		message += fmt.Sprintf("; the Pod can be where FlexVolume driver %s is: install it with `volplane flex install %s FILE` on a node", name, name)
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
	return first(k.Nodes, func(n *corev1.Node) bool { return n.Annotations[volume.AnnControlPlane] != "" })
}

// uncalled tells of a driver that the controllers cannot call, because it has not
// registered where they run. Where they run is not known in a cluster.
func (k known) uncalled(s source) (volume.Because, bool) {
	n := k.controlPlane()
	if n == nil || k.registered(s.driver, n.Name) {
		return volume.Because{}, false
	}
	b, ok := k.absent(s, n.Name)
	if !ok {
		b = volume.Because{
			Reason: volume.ReasonDriverMissing, Message: fmt.Sprintf("driver %s has not registered on node %s", s.driver, n.Name),
			Next: "administrator of node " + n.Name,
		}
	}
	b.Message += "; the control plane runs there and calls it to attach, detach and grow volumes of any node"
	return b, true
}
