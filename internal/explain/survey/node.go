package survey

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// Node returns whether a node exists and is ready, which drivers have registered on it,
// and every attachment and Pod there that is not as it should be; false if the node does
// not exist.
func Node(w why.Walk, name string) (chain.Chain, bool) {
	n := cluster.Find(w.View.Nodes, name)
	if n == nil {
		return chain.Chain{}, false
	}
	c := aboutNode(w, n)
	if !c.Healthy() {
		return c, true // everything on it waits for the node
	}
	c.Links = append(c.Links, unusable(n)...)
	for _, a := range w.Attachments {
		if v := attach.VolumeOf(w.View, a); v != nil && v.Spec.CSI == nil {
			// An in-tree volume that Kubernetes hands to a driver has a name there that
			// only Kubernetes knows.
			continue
		}
		if l := w.Attached(a); a.Spec.NodeName == name && l.State != chain.OK {
			c.Links = append(c.Links, l)
		}
	}
	for _, p := range w.Pods {
		if p.Spec.NodeName != name || cluster.Finished(p) {
			continue
		}
		if l := w.AboutPod(p).Answer(); l.State != chain.OK {
			c.Links = append(c.Links, chain.Link{Subject: "pod/" + p.Name, State: l.State, Because: l.Because})
		}
	}
	return c, true
}

// aboutNode explains the node by itself.
func aboutNode(w why.Walk, n *corev1.Node) chain.Chain {
	name := n.Name
	subject := "node/" + name
	l, down := w.NodeDown(name)
	if !down {
		l = chain.New(subject, chain.OK, volume.ReasonNodeReady,
			fmt.Sprintf("volumes: %d attached, %d in use", len(n.Status.VolumesAttached), len(n.Status.VolumesInUse)),
			volume.Actor{})
	}
	links := append([]chain.Link{l}, registered(w, n)...)
	for _, left := range []volume.Reason{volume.ReasonMountUnknown, volume.ReasonJournalTorn} {
		if l, found := w.Failed(subject, n, left, volume.User()); found {
			links = append(links, l)
		}
	}
	return chain.Chain{Subject: subject, Links: links}
}

// registered explains each driver on a node; volumes cannot be used on a node without
// any.
func registered(w why.Walk, node *corev1.Node) []chain.Link {
	n := cluster.Find(w.View.CSINodes, node.Name)
	if n == nil || len(n.Spec.Drivers) == 0 {
		if len(refused(node)) > 0 {
			return nil // it is reported with them
		}
		if l, ok := w.Failed("csinode/"+node.Name, node, volume.ReasonRegistrationRefused, volume.User()); ok {
			return []chain.Link{l}
		}
		if node.Status.NodeInfo.KubeletVersion != "" {
			// A kubelet's node may be for Pods without such volumes.
			return nil
		}
		return []chain.Link{
			chain.New("csinode/"+node.Name, chain.Problem, volume.ReasonDriverMissing, "no driver has registered on the node",
				volume.User()),
		}
	}
	var out []chain.Link
	for _, d := range n.Spec.Drivers {
		if b, bad := health.StorageProblem(n, d.Name, nil); bad {
			out = append(out, chain.Broken("csinode/"+node.Name, b))
		}
		other := drivers.SharesID(w.View, d, node.Name)
		if other != "" && !attach.SkipsAttach(cluster.Find(w.View.Drivers, d.Name)) {
			out = append(out, chain.New("csidriver/"+d.Name, chain.Problem, volume.ReasonSharedNodeID,
				fmt.Sprintf("registered as %s, and on node %s as well: the driver may attach a volume to the wrong one of them; "+
					"start it with an id of its own on each node", d.NodeID, other), volume.Administrator(node.Name)))
			continue
		}
		message := "registered as " + d.NodeID
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			message += fmt.Sprintf(", can have %d volumes and has %d", *d.Allocatable.Count, drivers.Attached(w.View, node.Name,
				d.Name))
		}
		out = append(out, chain.New("csidriver/"+d.Name, chain.OK, volume.ReasonRegistered, message, volume.Actor{}))
	}
	return out
}

// unusable reports each driver that cannot be used on a node, whether or not an object
// waits for it.
func unusable(n *corev1.Node) []chain.Link {
	noted := driverstatus.Of(n)
	var out []chain.Link
	for _, csi := range slices.Sorted(maps.Keys(noted)) {
		if noted[csi] == "" {
			continue
		}
		if b := driverstatus.Absent(csi, n); b.Reason != "" {
			subject := "csidriver/" + csi
			if b.Reason != volume.ReasonRegistrationRefused {
				subject = driverstatus.Driver{CSI: csi, Hosted: true}.Subject()
			}
			out = append(out, chain.Broken(subject, b))
		}
	}
	return out
}

// refused reports each driver that a node has refused or does not run.
func refused(n *corev1.Node) []chain.Link {
	other := func(l chain.Link) bool { return l.Because.Reason != volume.ReasonRegistrationRefused }
	return slices.DeleteFunc(unusable(n), other)
}

// claimChain explains a claim that was found.
func claimChain(w why.Walk, c *corev1.PersistentVolumeClaim) chain.Chain {
	told, _ := w.Claim(c.Namespace, c.Name)
	return told
}
