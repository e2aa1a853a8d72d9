package drivers

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/volume"
)

// Of returns the driver of a volume; false if it has none.
func Of(v *corev1.PersistentVolume) (driverstatus.Driver, bool) {
	if v == nil || v.Spec.CSI == nil {
		return driverstatus.Driver{}, false
	}
	return driverstatus.Driver{CSI: v.Spec.CSI.Driver, Hosted: driverstatus.Hosted(v)}, true
}

// OfPod returns the drivers that a Pod needs.
func OfPod(view cluster.View, p *corev1.Pod) []driverstatus.Driver {
	var out []driverstatus.Driver
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.CSI != nil {
			out = append(out, driverstatus.Driver{CSI: v.CSI.Driver, Hosted: driverstatus.HostedInline(v)})
		}
	}
	for _, name := range cluster.ClaimNames(p) {
		claim := cluster.Find(view.Claims, p.Namespace+"/"+name)
		if claim == nil {
			continue
		}
		if s, ok := Of(cluster.Find(view.Volumes, claim.Spec.VolumeName)); ok {
			out = append(out, s)
		}
	}
	return out
}

// Absent returns why a driver has not registered on a node, if the notes of the node's host of
// drivers say so. In a cluster that does not know such volumes, the driver may be noted although the
// volume does not say that it is hosted.
func Absent(view cluster.View, s driverstatus.Driver, node string) (volume.Because, bool) {
	n := cluster.Find(view.Nodes, node)
	if n == nil || Registered(view, s.CSI, node) {
		return volume.Because{}, false
	}
	noted := slices.ContainsFunc(view.Nodes.List(), func(n *corev1.Node) bool {
		_, ok := driverstatus.Of(n)[s.CSI]
		return ok
	})
	if !s.Hosted && !noted {
		return volume.Because{}, false
	}
	b := driverstatus.Absent(s.CSI, n)
	return b, b.Reason != ""
}

// Broken returns why a registered driver of a host cannot be used on a node, if that is why a call failed. The host may
// keep a broken version registered, so that volumes can be unmounted.
func Broken(view cluster.View, s driverstatus.Driver, node string, cause volume.Cause) (volume.Because, bool) {
	n := cluster.Find(view.Nodes, node)
	if n == nil || driverstatus.Of(n)[s.CSI] == "" || cause.Code != "Unavailable" {
		return volume.Because{}, false
	}
	return driverstatus.Absent(s.CSI, n), true
}

// BrokenFor returns the result of Broken for the first broken driver of a Pod.
func BrokenFor(view cluster.View, p *corev1.Pod, cause volume.Cause) (volume.Because, bool) {
	for _, s := range OfPod(view, p) {
		if b, ok := Broken(view, s, p.Spec.NodeName, cause); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// IsLacking says whether a driver of a host is not on all nodes.
func IsLacking(view cluster.View, s driverstatus.Driver) bool {
	return slices.ContainsFunc(view.Nodes.List(), func(n *corev1.Node) bool {
		return !Registered(view, s.CSI, n.Name) && driverstatus.Lack(s.CSI, n) != ""
	})
}

// Lacks returns the result of Absent for the first absent driver of a Pod.
func Lacks(view cluster.View, p *corev1.Pod, node string) (volume.Because, bool) {
	for _, s := range OfPod(view, p) {
		if b, ok := Absent(view, s, node); ok {
			return b, true
		}
	}
	return volume.Because{}, false
}

// ControlPlane returns the node whose agent runs in the process of the controllers, of several the one with the first
// control plane; nil in a cluster, where that is not known.
func ControlPlane(view cluster.View) *corev1.Node {
	return cluster.Find(view.Nodes, planes.First(view.Nodes.List()))
}

// Uncalled returns why the controllers cannot call a driver where a control plane runs in one process: called says that
// a live process holds the driver's leases. For a cluster it returns false: its sidecars may run without leases.
func Uncalled(view cluster.View, s driverstatus.Driver, called bool) (volume.Because, bool) {
	n := ControlPlane(view)
	if n == nil || called {
		return volume.Because{}, false
	}
	if b, ok := delegatedTo(view, s.CSI, n.Name); ok {
		return b, true
	}
	if Registered(view, s.CSI, n.Name) {
		cause := "what has registered on node " + n.Name + " is its node process, and no process with its controller is known"
		if wrong := driverstatus.Of(n)[s.CSI]; wrong != "" {
			cause = "on node " + n.Name + " " + wrong
		}
		return volume.Say(volume.ReasonDriverMissing, volume.Administrator(n.Name),
			"no process calls driver "+s.CSI+" as a controller: "+cause), true
	}
	b, ok := Absent(view, s, n.Name)
	if !ok {
		b = volume.Sayf(volume.ReasonDriverMissing, volume.Administrator(n.Name),
			"driver %s has not registered on node %s", s.CSI, n.Name)
	}
	b.Message += "; the control plane runs there and calls it to create, attach, detach and expand volumes of any node"
	if on := registeredOn(view, s.CSI); on != "" {
		b.Message += fmt.Sprintf(", unless another node may: volplane driver delegate %s %s", s.CSI, on)
	}
	return b, true
}

// delegatedTo returns why no node calls a driver that is delegated to nodes, beside that of the control plane.
func delegatedTo(view cluster.View, driver, controlPlane string) (volume.Because, bool) {
	var nodes []string
	if d := cluster.Find(view.Drivers, driver); d != nil {
		nodes = volume.DelegatedTo(d.Annotations)
	}
	if len(nodes) == 0 {
		return volume.Because{}, false
	}
	return volume.Sayf(volume.ReasonDriverMissing, volume.Administrator(nodes[0]),
		"no process calls driver %s as a controller: it is delegated to %s, and neither there nor on node %s, which may "+
			"call it, too, is a process with its controller reached", driver, named(nodes), controlPlane), true
}

// named returns "node a" or "nodes a, b".
func named(nodes []string) string {
	switch {
	case len(nodes) == 1:
		return "node " + nodes[0]
	case len(nodes) > maxNamed:
		return "nodes " + strings.Join(nodes[:maxNamed], ", ") + " and others"
	}
	return "nodes " + strings.Join(nodes, ", ")
}

// registeredOn returns the first node on which a driver is registered, or "".
func registeredOn(view cluster.View, driver string) string {
	for _, n := range slices.SortedFunc(slices.Values(view.CSINodes.List()), cluster.Compare[*storagev1.CSINode]) {
		if cluster.HasDriver(n, driver) {
			return n.Name
		}
	}
	return ""
}

// IsNodeLocal says whether the volumes of a driver are made and served by the controllers of each node.
func IsNodeLocal(view cluster.View, driver string) bool {
	d := cluster.Find(view.Drivers, driver)
	return d != nil && volume.IsNodeLocal(d.Annotations)
}

// UncalledOn returns why the controllers of a node cannot call a node-local driver; false if the driver has registered
// there.
func UncalledOn(view cluster.View, s driverstatus.Driver, node string) (volume.Because, bool) {
	if Registered(view, s.CSI, node) {
		return volume.Because{}, false
	}
	return volume.Sayf(volume.ReasonDriverMissing, volume.Administrator(node), "driver %s has not registered on node %s, "+
		"and only that node's controllers call it for the node's volumes", s.CSI, node), true
}

// SharesID returns the first other node that a driver knows by the same id as this one; "" if there is none.
func SharesID(view cluster.View, d storagev1.CSINodeDriver, node string) string {
	same := func(other storagev1.CSINodeDriver) bool { return other.Name == d.Name && other.NodeID == d.NodeID }
	for _, n := range slices.SortedFunc(slices.Values(view.CSINodes.List()), cluster.Compare[*storagev1.CSINode]) {
		if n.Name != node && slices.ContainsFunc(n.Spec.Drivers, same) {
			return n.Name
		}
	}
	return ""
}

// Registered says whether a driver is registered on a node, or, with an empty node, on any.
func Registered(view cluster.View, driver, node string) bool {
	has := func(n *storagev1.CSINode) bool { return cluster.HasDriver(n, driver) }
	if node == "" {
		return slices.ContainsFunc(view.CSINodes.List(), has)
	}
	n := cluster.Find(view.CSINodes, node)
	return n != nil && has(n)
}

// Attached returns the number of a driver's volumes that are attached to a node.
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
