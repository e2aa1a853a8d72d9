package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
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
}

// Node is one node that the Pod might go to.
type Node struct {
	Object *corev1.Node
	CSI    *storagev1.CSINode
	// Pods is how many Pods are there.
	Pods int
	// Volumes is how many volumes of a driver are there, by driver.
	Volumes map[string]int
}

// Facts is everything that a decision about one Pod looks at.
type Facts struct {
	Pod    *corev1.Pod
	Claims []Claim
	Nodes  []Node
}

// Plan is what is written for the Pod.
type Plan struct {
	// Select are late-binding claims that Node is written to.
	Select []*corev1.PersistentVolumeClaim
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
		switch {
		case c.Object == nil:
			return waits(volume.ReasonClaimMissing, "user", fmt.Sprintf("persistentvolumeclaim %q not found", c.Name))
		case c.Object.DeletionTimestamp != nil:
			return waits(volume.ReasonTerminating, "user", fmt.Sprintf("persistentvolumeclaim %q is being deleted", c.Name))
		case c.Volume == nil && !late(c):
			return waits(volume.ReasonWaitForBind, "binder", fmt.Sprintf("persistentvolumeclaim %q is not bound yet", c.Name))
		}
	}
	node, why := choose(f)
	if node == "" {
		return why
	}
	p := Plan{Node: node, Bind: true, Because: volume.Because{Reason: volume.ReasonPlaced, Message: "Successfully assigned " + f.Pod.Namespace + "/" + f.Pod.Name + " to " + node}}
	for _, c := range f.Claims {
		if c.Volume != nil {
			continue
		}
		p.Bind = false
		p.Because = volume.Because{Reason: volume.ReasonWaitForBind, Message: fmt.Sprintf("persistentvolumeclaim %q is being bound for node %s", c.Name, node), Next: "provisioner"}
		if c.Object.Annotations[volume.AnnSelectedNode] != node {
			o := c.Object.DeepCopy()
			if o.Annotations == nil {
				o.Annotations = map[string]string{}
			}
			o.Annotations[volume.AnnSelectedNode] = node
			p.Select = append(p.Select, o)
		}
	}
	p.Bind = p.Bind && f.Pod.Spec.NodeName == ""
	return p
}

func waits(r volume.Reason, next, message string) Plan {
	return Plan{Because: volume.Because{Reason: r, Message: message, Next: next}}
}

// late says whether an unbound claim waits for a node to be chosen.
func late(c Claim) bool { return c.Object.Spec.VolumeName == "" && bind.BindsLate(c.Class) }

// choose returns the node with the fewest Pods that everything fits on, of
// equal ones the first by name; a node that a claim was promised before is
// kept, so that a volume under way is not left behind.
func choose(f Facts) (string, Plan) {
	if f.Pod.Spec.NodeName != "" {
		return f.Pod.Spec.NodeName, Plan{}
	}
	nodes := slices.Clone(f.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Object.Name, b.Object.Name))
	})
	var refused []string
	for _, n := range nodes {
		why := refuses(f, n)
		if why == "" {
			return n.Object.Name, Plan{}
		}
		refused = append(refused, n.Object.Name+": "+why)
	}
	slices.Sort(refused)
	message := fmt.Sprintf("0/%d nodes are available", len(nodes))
	if len(refused) > 0 {
		message += ": " + strings.Join(refused, "; ")
	}
	return "", waits(volume.ReasonFailedPlacing, "user", message)
}

// refuses names what keeps the Pod from a node; "" is nothing.
func refuses(f Facts, n Node) string {
	labels := n.Object.Labels
	switch {
	case n.Object.DeletionTimestamp != nil, n.Object.Spec.Unschedulable:
		return "it is unschedulable"
	case !ready(n.Object):
		return "it is not ready"
	}
	for k, v := range f.Pod.Spec.NodeSelector {
		if labels[k] != v {
			return fmt.Sprintf("the pod wants label %s=%s", k, v)
		}
	}
	if a := f.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && !Selects(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, n.Object) {
		return "the pod's node affinity excludes it"
	}
	if t := untolerated(f.Pod, n.Object); t != "" {
		return "the pod does not tolerate taint " + t
	}
	for _, c := range f.Claims {
		if why := refusesClaim(c, n); why != "" {
			return why
		}
	}
	return ""
}

func refusesClaim(c Claim, n Node) string {
	if c.Volume != nil {
		if a := c.Volume.Spec.NodeAffinity; a != nil && !Selects(a.Required, n.Object) {
			return "volume " + c.Volume.Name + " is not reachable there"
		}
		if s := c.Volume.Spec.CSI; s != nil {
			return refusesDriver(s.Driver, n)
		}
		return ""
	}
	if chosen := c.Object.Annotations[volume.AnnSelectedNode]; chosen != "" && chosen != n.Object.Name {
		return fmt.Sprintf("claim %s is promised to node %s", c.Name, chosen)
	}
	allowed := topology.Flatten(c.Class.AllowedTopologies)
	if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(s topology.Segment) bool { return within(s, n.Object.Labels) }) {
		return "class " + c.Class.Name + " does not allow volumes there"
	}
	return refusesDriver(c.Class.Provisioner, n)
}

func refusesDriver(driver string, n Node) string {
	if n.CSI != nil {
		for _, d := range n.CSI.Spec.Drivers {
			if d.Name != driver {
				continue
			}
			if d.Allocatable != nil && d.Allocatable.Count != nil && n.Volumes[driver] >= int(*d.Allocatable.Count) {
				return fmt.Sprintf("driver %s has its limit of %d volumes there", driver, *d.Allocatable.Count)
			}
			return ""
		}
	}
	return "driver " + driver + " is not registered there"
}

func within(s topology.Segment, labels map[string]string) bool {
	for k, v := range s {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func untolerated(p *corev1.Pod, n *corev1.Node) string {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(p.Spec.Tolerations, func(o corev1.Toleration) bool { return tolerates(o, t) }) {
			return t.Key
		}
	}
	return ""
}

func tolerates(o corev1.Toleration, t *corev1.Taint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	return o.Operator == corev1.TolerationOpExists || o.Key != "" && o.Value == t.Value
}
