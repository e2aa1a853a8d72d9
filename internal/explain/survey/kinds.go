package survey

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// Class returns whether volumes of a class can be created, and each claim that waits for
// one; false if the class does not exist.
func Class(w why.Walk, name string) (chain.Chain, bool) {
	class := cluster.Find(w.View.Classes, name)
	if class == nil {
		return chain.Chain{}, false
	}
	c := chain.Chain{Subject: "storageclass/" + name}
	c.Links = append(c.Links, ofClass(w, class))
	for _, claim := range w.Claims {
		if n, _ := bind.ClassOf(claim); n == name && claim.Spec.VolumeName == "" {
			c.Links = append(c.Links, held("pvc/", claim.Namespace, claimChain(w, claim),
				c.Links[0])...)
		}
	}
	return c, true
}

func ofClass(w why.Walk, class *storagev1.StorageClass) chain.Link {
	subject, driver := "storageclass/"+class.Name, class.Provisioner
	if driver == volume.NoProvisioner {
		return chain.New(subject, chain.OK, volume.ReasonNothingToDo, "volumes of this class are created manually",
			volume.Actor{})
	}
	if !drivers.Registered(w.View, driver, "") {
		return chain.Link{Subject: subject, State: chain.Problem, Because: drivers.Nowhere(w.View, driver)}
	}
	text := "driver " + driver
	if bind.BindsLate(class) {
		text += "; a claim gets its volume when a Pod uses it"
	}
	switch ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete) {
	case corev1.PersistentVolumeReclaimRetain:
		text += "; a volume stays when its claim is deleted"
	default:
		text += "; a volume is deleted with its claim"
	}
	if d := bind.DefaultClass(w.Classes); d != nil && d.Name == class.Name {
		text += "; it is the default class"
	}
	return chain.New(subject, chain.OK, volume.ReasonNothingToDo, text, volume.Actor{})
}

// held returns the answer about an object that belongs to the one in question, if the
// object waits, and for something that is not already reported.
func held(kind, namespace string, c chain.Chain, told chain.Link) []chain.Link {
	a := c.Answer()
	if a.State == chain.OK || a.Because == told.Because {
		return nil
	}
	_, name, _ := strings.Cut(c.Subject, "/")
	if namespace != "" {
		a.Because.Message = "in namespace " + namespace + ": " + a.Because.Message
	}
	return []chain.Link{{Subject: kind + name, State: a.State, Because: a.Because}}
}

// Driver returns where a driver has registered, which classes name it, what is wrong
// with it elsewhere, and each of its attachments that is not as it should be; false if no
// object names the driver.
func Driver(w why.Walk, name string) (chain.Chain, bool) {
	var nodes []string
	for _, n := range w.CSINodes {
		if cluster.HasDriver(n, name) {
			nodes = append(nodes, n.Name)
		}
	}
	told := slices.ContainsFunc(w.Nodes, func(n *corev1.Node) bool { return driverstatus.Of(n)[name] != "" })
	object := cluster.Find(w.View.Drivers, name)
	if object == nil && len(nodes) == 0 && !told {
		return chain.Chain{}, false
	}
	c := chain.Chain{Subject: "csidriver/" + name}
	c.Links = append(c.Links, ofDriver(w, name, nodes))
	c.Links = append(c.Links, absences(w, name, object)...)
	for _, a := range w.Attachments {
		if l := w.Attached(a); a.Spec.Attacher == name && l.State != chain.OK {
			c.Links = append(c.Links, l)
		}
	}
	return c, true
}

// maxNamed bounds how many nodes of a driver are named.
const maxNamed = 5

func ofDriver(w why.Walk, name string, nodes []string) chain.Link {
	subject := "csidriver/" + name
	if len(nodes) == 0 {
		return chain.Link{Subject: subject, State: chain.Problem, Because: drivers.Nowhere(w.View, name)}
	}
	text := "registered on " + strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if len(nodes) > maxNamed {
		text += fmt.Sprintf(" and %d other nodes", len(nodes)-maxNamed)
	}
	var classes []string
	for _, class := range w.Classes {
		if class.Provisioner == name {
			classes = append(classes, class.Name)
		}
	}
	if len(classes) > 0 {
		text += "; its classes: " + chain.Names(classes)
	}
	return chain.New(subject, chain.OK, volume.ReasonRegistered, text, volume.Actor{})
}

// absences reports each node on which the driver is wanted and cannot be used.
func absences(w why.Walk, name string, object *storagev1.CSIDriver) []chain.Link {
	var out []chain.Link
	control := drivers.ControlPlane(w.View)
	for _, n := range w.Nodes {
		b, ok := driverstatus.Absent(name, n), driverstatus.Of(n)[name] != "" && !drivers.Registered(w.View, name, n.Name)
		if n == control && !attach.SkipsAttach(object) {
			b, ok = w.Uncalled(driverstatus.Driver{CSI: name}, "")
		}
		if ok && b.Reason != "" {
			out = append(out, chain.Broken("node/"+n.Name, b))
		}
	}
	return out
}

// CSINode returns which drivers have registered on a node, whether the node is ready, and
// what on it is not as it should be; false if the node does not exist.
func CSINode(w why.Walk, name string) (chain.Chain, bool) {
	c, ok := Node(w, name)
	if ok || cluster.First(w.CSINodes, func(n *storagev1.CSINode) bool { return n.Name == name }) == nil {
		return c.Under("csinode/" + name), ok
	}
	l := chain.New("node/"+name, chain.Problem, volume.ReasonNodeGone, "node does not exist: "+name, volume.User())
	return chain.Chain{Subject: "csinode/" + name, Links: []chain.Link{l}}, true
}

// Namespace returns whether a namespace is being deleted, and each claim and Pod in it
// that waits; false if the namespace does not exist.
func Namespace(w why.Walk, name string) (chain.Chain, bool) {
	n := cluster.First(w.Namespaces, func(n *corev1.Namespace) bool { return n.Name == name })
	if n == nil {
		return chain.Chain{}, false
	}
	c, claims, pods := chain.Chain{Subject: "namespace/" + name}, 0, 0
	var waits []chain.Link
	for _, claim := range w.Claims {
		if claim.Namespace == name {
			claims++
			waits = append(waits, held("pvc/", "", claimChain(w, claim), chain.Link{})...)
		}
	}
	for _, p := range w.Pods {
		if p.Namespace == name && !cluster.Finished(p) {
			pods++
			waits = append(waits, held("pod/", "", w.AboutPod(p), chain.Link{})...)
		}
	}
	l := chain.New(c.Subject, chain.OK, volume.ReasonNothingToDo,
		fmt.Sprintf("claims: %d, pods: %d", claims, pods), volume.Actor{})
	if n.DeletionTimestamp != nil {
		l = leaving(n, claims, pods)
	}
	c.Links = append([]chain.Link{l}, waits...)
	return c, true
}

// leaving explains what keeps a namespace that is being deleted.
func leaving(n *corev1.Namespace, claims, pods int) chain.Link {
	text := fmt.Sprintf("the namespace is being deleted with all that is in it; claims: %d, pods: %d", claims, pods)
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type != corev1.NamespaceDeletionDiscoveryFailure && c.Message != "" {
			text += "; " + c.Message
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type == corev1.NamespaceDeletionDiscoveryFailure {
			return chain.New("namespace/"+n.Name, chain.Problem, volume.ReasonTerminating, text+"; "+c.Message, volume.User())
		}
	}
	return chain.New("namespace/"+n.Name, chain.Waiting, volume.ReasonTerminating, text,
		volume.Controller("namespace controller"))
}
