package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// Claim is one claim of the Pod with what is known of it.
type Claim struct {
	Name string
	// Object is nil when there is no such claim.
	Object *corev1.PersistentVolumeClaim
	Class  *storagev1.StorageClass
	// Volume is the one that the claim is bound to; nil when it is not.
	Volume *corev1.PersistentVolume
	// Reserved are volumes that refer to the claim, Free those that any claim
	// without a volume may get; nil is none.
	Reserved []*corev1.PersistentVolume
	Free     *bind.Free
	// Driver is the object of the class's driver; nil when there is none.
	Driver *storagev1.CSIDriver
	// Capacities tell how much there is of the class; they need only be known
	// where the driver wants them to be looked at.
	Capacities []*storagev1.CSIStorageCapacity
	// Holder is the other Pod that uses a claim which only one Pod may use.
	Holder string
	// Ephemeral says that the claim is to be made for this Pod, Stranger that
	// it was not.
	Ephemeral, Stranger bool
}

// Node is one node that the Pod might go to.
type Node struct {
	Object *corev1.Node
	CSI    *storagev1.CSINode
	// Pods is how many Pods are there or on their way.
	Pods int
	// Volumes are the handles of the volumes that are there or on their way, by
	// driver; they need only be known where a driver has a limit.
	Volumes map[string]map[string]bool
}

// Facts is everything that a decision about one Pod looks at.
type Facts struct {
	Pod    *corev1.Pod
	Claims []Claim
	// Nodes are all nodes; of a Pod that named its node itself, only that one.
	Nodes []Node
}

// Plan is what is written for the Pod.
type Plan struct {
	// Reserve are volumes that now refer to late-binding claims, Select
	// late-binding claims that Node is written to.
	Reserve []*corev1.PersistentVolume
	Select  []*corev1.PersistentVolumeClaim
	// Node is where the Pod goes; Bind says that it may go now, because all
	// its claims are bound.
	Node    string
	Bind    bool
	Because volume.Because
}

// Pod decides about one Pod. A Pod that names its node itself only has its
// late-binding claims told.
func Pod(f Facts) Plan {
	for _, c := range f.Claims {
		if p := unready(c); p != nil {
			return *p
		}
	}
	node, why := choose(f)
	if node == nil {
		return why
	}
	name := node.Object.Name
	p := Plan{Node: name, Bind: f.Pod.Spec.NodeName == ""}
	p.Because = volume.Because{
		Reason: volume.ReasonPlaced, Message: "Successfully assigned " + f.Pod.Namespace + "/" + f.Pod.Name + " to " + name,
	}
	// A Pod that named its node is there, whatever the node lacks; volumes are
	// then made for it and none of the available ones is chosen.
	volumes, _ := settle(f, *node)
	for _, c := range f.Claims {
		if c.Volume != nil {
			continue
		}
		p.Bind = false
		p.Because = volume.Because{
			Reason:  volume.ReasonWaitForBind,
			Message: fmt.Sprintf("persistentvolumeclaim %q is being bound for node %s", c.Name, name), Next: "provisioner",
		}
		if v := volumes[c.Name]; v != nil {
			p.Reserve = append(p.Reserve, reserved(v, c.Object))
			p.Because.Next = "binder"
		} else if told := c.Object.Annotations[volume.AnnSelectedNode]; told != name &&
			(told == "" || f.Pod.Spec.NodeName == "") {
			p.Select = append(p.Select, selected(c.Object, name))
		}
	}
	return p
}

// unready returns why a claim keeps its Pod from any node; nil is nothing.
func unready(c Claim) *Plan {
	var p Plan
	switch {
	case c.Object == nil && c.Ephemeral:
		p = waits(volume.ReasonClaimMissing, "ephemeral",
			fmt.Sprintf("persistentvolumeclaim %q is being made for this pod", c.Name))
	case c.Stranger:
		p = waits(volume.ReasonClaimMisbound, "user",
			fmt.Sprintf("persistentvolumeclaim %q was not made for this pod", c.Name))
	case c.Object == nil:
		p = waits(volume.ReasonClaimMissing, "user", fmt.Sprintf("persistentvolumeclaim %q not found", c.Name))
	case c.Object.DeletionTimestamp != nil:
		p = waits(volume.ReasonTerminating, "user", fmt.Sprintf("persistentvolumeclaim %q is being deleted", c.Name))
	case c.Object.Status.Phase == corev1.ClaimLost:
		p = waits(volume.ReasonClaimLost, "user", fmt.Sprintf("persistentvolumeclaim %q has lost its volume", c.Name))
	case c.Holder != "":
		p = waits(volume.ReasonInUse, "pod "+c.Holder,
			fmt.Sprintf("persistentvolumeclaim %q is for one pod and pod %s uses it", c.Name, c.Holder))
	case c.Volume == nil && !late(c):
		p = waits(volume.ReasonWaitForBind, "binder", fmt.Sprintf("persistentvolumeclaim %q is not bound yet", c.Name))
	default:
		return nil
	}
	return &p
}

func waits(r volume.Reason, next, message string) Plan {
	return Plan{Because: volume.Because{Reason: r, Message: message, Next: next}}
}

// late says whether an unbound claim waits for a node to be chosen. One that a
// volume refers to is about to be bound.
func late(c Claim) bool {
	return c.Object.Spec.VolumeName == "" && bind.BindsLate(c.Class) && len(c.Reserved) == 0
}

func selected(c *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	o := c.DeepCopy()
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[volume.AnnSelectedNode] = node
	return o
}

func reserved(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	o := v.DeepCopy()
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[volume.AnnBoundByController] = "yes"
	o.Spec.ClaimRef = bind.Reference(c)
	return o
}

// maxNamed is how many nodes a refusal names.
const maxNamed = 10

// choose returns the node with the fewest Pods that everything fits on, of
// equal ones the first by name; a node that a claim was promised before is
// kept, so that a volume under way is not left behind.
func choose(f Facts) (*Node, Plan) {
	nodes := slices.Clone(f.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(promises(f, b), promises(f, a)), cmp.Compare(a.Pods, b.Pods),
			cmp.Compare(a.Object.Name, b.Object.Name))
	})
	var refused []string
	for i := range nodes {
		why := ""
		if f.Pod.Spec.NodeName == "" {
			why = refuses(f, nodes[i])
		}
		if why == "" {
			return &nodes[i], Plan{}
		}
		refused = append(refused, nodes[i].Object.Name+": "+why)
	}
	slices.Sort(refused)
	message := fmt.Sprintf("0/%d nodes are available", len(nodes))
	if more := len(refused) - maxNamed; more > 0 {
		refused = append(refused[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	if len(refused) > 0 {
		message += ": " + strings.Join(refused, "; ")
	}
	return nil, waits(volume.ReasonFailedPlacing, "user", message)
}

// promises is how many claims of the Pod a node was selected for.
func promises(f Facts, n Node) (count int) {
	for _, c := range f.Claims {
		if c.Object.Annotations[volume.AnnSelectedNode] == n.Object.Name {
			count++
		}
	}
	return count
}

// refuses names what keeps the Pod from a node; "" is nothing.
func refuses(f Facts, n Node) string {
	labels := n.Object.Labels
	switch {
	case n.Object.DeletionTimestamp != nil, n.Object.Spec.Unschedulable:
		return "it is unschedulable"
	case !nodelife.Ready(n.Object):
		return "it is not ready"
	}
	for k, v := range f.Pod.Spec.NodeSelector {
		if labels[k] != v {
			return fmt.Sprintf("the pod wants label %s=%s", k, v)
		}
	}
	if a := f.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		!Selects(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, n.Object) {
		return "the pod's node affinity excludes it"
	}
	if t := untolerated(f.Pod, n.Object); t != "" {
		return "the pod does not tolerate taint " + t
	}
	_, why := settle(f, n)
	return why
}

func untolerated(p *corev1.Pod, n *corev1.Node) string {
	for i := range n.Spec.Taints {
		t := n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return nodelife.Tolerates(o, t) }) {
			return t.Key
		}
	}
	return ""
}
