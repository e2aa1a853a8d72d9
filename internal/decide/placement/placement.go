package placement

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Claim has the facts about one claim of the Pod.
type Claim struct {
	Name string
	// Object is nil if the claim does not exist.
	Object *corev1.PersistentVolumeClaim
	Class  *storagev1.StorageClass
	// Volume is the volume to which the claim is bound, or nil.
	Volume *corev1.PersistentVolume
	// Reserved are the volumes that refer to the unbound claim.
	Reserved []*corev1.PersistentVolume
	// Free is the set of free volumes, or nil.
	Free *bind.Free
	// Driver is the CSIDriver of the class's driver, or nil.
	Driver *storagev1.CSIDriver
	// Capacities are the capacity objects of the class, if the driver wants them to be considered.
	Capacities []*storagev1.CSIStorageCapacity
	// Origin says where the data are from which the claim's volume is created.
	Origin provision.Origin
	// Holder is the name of another Pod that uses a ReadWriteOncePod claim, or "".
	Holder string
	// Ephemeral says whether the missing claim will be created for this Pod.
	Ephemeral bool
	// Stranger says whether the claim should have been created for this Pod, but was not.
	Stranger bool
}

// Node has the facts about one node.
type Node struct {
	Object *corev1.Node
	CSI    *storagev1.CSINode
	// Pods is the number of Pods that have this node or for which it was chosen.
	Pods int
	// Volumes holds, by driver, the handles of the volumes that these Pods use or that are attached,
	// if a driver has an attach limit.
	Volumes map[string]map[string]bool
}

// Facts is what the decision about one Pod depends on.
type Facts struct {
	Pod    *corev1.Pod
	Claims []Claim
	// Nodes are all nodes. If the Pod has a node, it is only that node.
	Nodes []Node
}

// Plan is the decision about a Pod.
type Plan struct {
	// Reserve are volumes to write, with references to claims of the Pod.
	Reserve []*corev1.PersistentVolume
	// Select are claims to write, with Node as their selected node.
	Select []*corev1.PersistentVolumeClaim
	// Node is the name of the chosen node, or "".
	Node string
	// Bind says whether to write Node to the Pod now, because all its claims are bound.
	Bind bool
	// Astray says that the Pod has a node which cannot have the volume of one of its claims.
	Astray  bool
	Because volume.Because
}

// Pod decides about one Pod. For a Pod that has a node, it only decides about late-binding claims.
func Pod(f Facts) Plan {
	for _, c := range f.Claims {
		if p := unready(c); p != nil {
			return *p
		}
	}
	node, why := choose(f, preference(f))
	if node == nil {
		return why
	}
	name := node.Object.Name
	if why := astray(f, node.Object); why != "" {
		p := waits(volume.ReasonFailedPlacing, volume.User(), "the pod is for node "+name+", and "+why)
		p.Astray = true
		return p
	}
	p := Plan{Node: name, Bind: f.Pod.Spec.NodeName == ""}
	p.Because = volume.Because{
		Reason: volume.ReasonPlaced, Message: "Successfully assigned " + f.Pod.Namespace + "/" + f.Pod.Name + " to " + name,
	}
	// If the Pod's user has chosen a node where the claims cannot be assigned, volumes is empty: no
	// free volume is reserved, and new ones are requested.
	volumes, _ := assign(f, *node)
	for _, c := range f.Claims {
		if c.Volume != nil {
			continue
		}
		p.Bind = false
		p.Because = volume.Sayf(volume.ReasonWaitForBind, volume.Controller("provisioner"),
			"persistentvolumeclaim %q is being bound for node %s", c.Name, name)
		if v := volumes[c.Name]; v != nil {
			p.Reserve = append(p.Reserve, reserved(v, c.Object))
			p.Because.Next = volume.Controller("binder")
		} else if old := volume.SelectedNode(c.Object.Annotations); old != name &&
			(old == "" || f.Pod.Spec.NodeName == "") {
			p.Select = append(p.Select, selected(c.Object, name))
		}
	}
	return p
}

// astray returns why the node that the Pod's user has chosen cannot have the volume of a claim, or "".
func astray(f Facts, n *corev1.Node) string {
	for _, c := range f.Claims {
		if why := c.elsewhere(n); why != "" && f.Pod.Spec.NodeName != "" {
			return why
		}
	}
	return ""
}

// elsewhere returns why the volume of a claim cannot be made on a node, because its data are on another one, or "". On
// a selected node it may have been created already.
func (c Claim) elsewhere(n *corev1.Node) string {
	if c.Volume != nil || volume.SelectedNode(c.Object.Annotations) == n.Name {
		return ""
	}
	return c.Origin.Elsewhere(c.Name, n)
}

// unready returns the plan for a Pod that no node can run because of a claim, or nil.
func unready(c Claim) *Plan {
	var p Plan
	switch {
	case c.Object == nil && c.Ephemeral:
		p = waits(volume.ReasonClaimMissing, volume.Controller("ephemeral"),
			fmt.Sprintf("persistentvolumeclaim %q is being created for this pod", c.Name))
	case c.Stranger:
		p = waits(volume.ReasonClaimMisbound, volume.User(),
			fmt.Sprintf("persistentvolumeclaim %q was not created for this pod", c.Name))
	case c.Object == nil:
		p = waits(volume.ReasonClaimMissing, volume.User(), fmt.Sprintf("persistentvolumeclaim %q not found", c.Name))
	case c.Object.DeletionTimestamp != nil:
		p = waits(volume.ReasonTerminating, volume.User(), fmt.Sprintf("persistentvolumeclaim %q is being deleted", c.Name))
	case c.Object.Status.Phase == corev1.ClaimLost:
		p = waits(volume.ReasonClaimLost, volume.User(), fmt.Sprintf("persistentvolumeclaim %q has lost its volume", c.Name))
	case c.Holder != "":
		p = waits(volume.ReasonInUse, volume.PodActor(c.Holder),
			fmt.Sprintf("persistentvolumeclaim %q is for one pod and pod %s uses it", c.Name, c.Holder))
	case c.Volume == nil && !late(c):
		p = waits(volume.ReasonWaitForBind, volume.Controller("binder"),
			fmt.Sprintf("persistentvolumeclaim %q is not bound yet", c.Name))
	default:
		return nil
	}
	return &p
}

func waits(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}

// late says whether an unbound claim waits for a selected node. A claim to which a volume refers
// does not: the binder is binding it.
func late(c Claim) bool {
	return c.Object.Spec.VolumeName == "" && bind.BindsLate(c.Class) && len(c.Reserved) == 0
}

func selected(c *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	o := c.DeepCopy()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, volume.AnnSelectedNode, node)
	return o
}

func reserved(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	o := v.DeepCopy()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, volume.AnnBoundByController, "yes")
	o.Spec.ClaimRef = bind.Reference(c)
	return o
}

// maxNamed is the number of nodes that a message names.
const maxNamed = 10

// preference returns the order of nodes for a Pod. A node is better if its driver has not refused to create one of the
// volumes, or did so longer ago; then if it was selected for claims before, because volumes may be in creation there;
// then if it has the data for new volumes; then if the new volumes take clearly less of its free space (Kubernetes'
// StorageCapacityScoring); then if it has fewer Pods; then by name.
func preference(f Facts) func(a, b Node) int {
	taken := map[string]int64{}
	for _, n := range f.Nodes {
		taken[n.Object.Name] = tenths(f, n)
	}
	return func(a, b Node) int {
		return cmp.Or(cmp.Compare(refusals(f, a), refusals(f, b)), cmp.Compare(selections(f, b), selections(f, a)),
			cmp.Compare(copies(f, a), copies(f, b)), cmp.Compare(taken[a.Object.Name], taken[b.Object.Name]),
			cmp.Compare(a.Pods, b.Pods), cmp.Compare(a.Object.Name, b.Object.Name))
	}
}

// refusals returns how recently a node's driver has refused to create a volume for a claim, compared with other nodes;
// 0 if it has not.
func refusals(f Facts, n Node) (late int) {
	for _, c := range f.Claims {
		if c.Volume == nil {
			late = max(late, slices.Index(provision.RefusedOn(c.Object), n.Object.Name)+1)
		}
	}
	return late
}

// copies returns how many of the new volumes have their data, as far as is known, on other nodes.
func copies(f Facts, n Node) (count int) {
	for _, c := range f.Claims {
		if c.Volume == nil && !c.Origin.Has(n.Object) {
			count++
		}
	}
	return count
}

// tenths returns how much of a node's free space the new volumes of a Pod take.
func tenths(f Facts, n Node) (sum int64) {
	for _, c := range f.Claims {
		if c.Volume == nil && len(c.Capacities) > 0 {
			sum += needOf(c).Tenths(n.Object)
		}
	}
	return sum
}

func needOf(c Claim) capacity.Need {
	return capacity.Need{Claim: c.Object, Class: c.Class, Driver: c.Driver, Known: c.Capacities}
}

// choose returns the first possible node in an order. Without a possible node it returns the plan with the reason.
func choose(f Facts, order func(a, b Node) int) (*Node, Plan) {
	nodes := slices.SortedFunc(slices.Values(f.Nodes), order)
	because := refusal("")
	var refused []string
	for i := range nodes {
		var why volume.Because
		if f.Pod.Spec.NodeName == "" {
			why = problem(f, nodes[i])
		}
		if why.Reason == "" {
			return &nodes[i], Plan{}
		}
		refused = append(refused, nodes[i].Object.Name+": "+why.Message)
		if rank(why.Cause.Reason) > rank(because.Cause.Reason) {
			because = why
		}
	}
	slices.Sort(refused)
	message := fmt.Sprintf("0/%d nodes are available", len(nodes))
	if more := len(refused) - maxNamed; more > 0 {
		refused = append(refused[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	if len(refused) > 0 {
		message += ": " + strings.Join(refused, "; ")
	}
	because.Message = message
	return nil, Plan{Because: because}
}

// rank orders the reasons why nodes are refused: the Pod's reason is the highest of its nodes.
func rank(r volume.Reason) int {
	return slices.Index([]volume.Reason{volume.ReasonNotEnoughStorage, volume.ReasonCapacityUnknown}, r)
}

// refusal is why a node is refused, if the Pod's user can change that.
func refusal(message string) volume.Because {
	return volume.Say(volume.ReasonFailedPlacing, volume.User(), message)
}

// selections returns the number of the Pod's claims for which a node was selected.
func selections(f Facts, n Node) (count int) {
	for _, c := range f.Claims {
		if volume.SelectedNode(c.Object.Annotations) == n.Object.Name {
			count++
		}
	}
	return count
}

// problem returns why the Pod cannot run on a node; without a reason it can.
func problem(f Facts, n Node) volume.Because {
	labels := n.Object.Labels
	switch {
	case n.Object.DeletionTimestamp != nil, n.Object.Spec.Unschedulable:
		return refusal("it is unschedulable")
	case !nodelife.Ready(n.Object):
		return refusal("it is not ready")
	}
	for k, v := range f.Pod.Spec.NodeSelector {
		if labels[k] != v {
			return refusal(fmt.Sprintf("the pod wants label %s=%s", k, v))
		}
	}
	if a := f.Pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		!topology.Selects(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution, n.Object) {
		return refusal("the pod's node affinity excludes it")
	}
	if t := untolerated(f.Pod, n.Object); t != "" {
		return refusal("the pod does not tolerate taint " + t)
	}
	_, why := assign(f, n)
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

// IsUnplaced says whether a claim waits for a node that no Pod will choose: its class binds immediately, and each node
// with the driver creates its own volumes. Class and driver may be nil.
func IsUnplaced(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, driver *storagev1.CSIDriver) bool {
	return MayBeUnplaced(c) && class != nil && !bind.BindsLate(class) && provision.ProvisionerOf(c) == class.Provisioner &&
		driver != nil && volume.IsNodeLocal(driver.Annotations)
}

// MayBeUnplaced says whether IsUnplaced can be true with some class and driver.
func MayBeUnplaced(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName == "" && c.DeletionTimestamp == nil && provision.ProvisionerOf(c) != "" &&
		volume.SelectedNode(c.Annotations) == ""
}

// Unplaced decides on which node the volume of an unplaced claim is made: on a node that a Pod without constraints
// could use, that has room, and whose driver has not refused. The choice depends on the claim alone, which spreads many
// claims.
func Unplaced(c Claim, nodes []Node) Plan {
	f := Facts{Pod: &corev1.Pod{}, Claims: []Claim{c}, Nodes: nodes}
	node, why := choose(f, func(a, b Node) int {
		return cmp.Or(cmp.Compare(refusals(f, a), refusals(f, b)), cmp.Compare(turn(c, a), turn(c, b)),
			cmp.Compare(a.Object.Name, b.Object.Name))
	})
	if node == nil {
		why.Because.Reason = volume.ReasonProvisioningFailed
		return why
	}
	name := node.Object.Name
	return Plan{
		Node: name, Select: []*corev1.PersistentVolumeClaim{selected(c.Object, name)},
		Because: volume.Say(volume.ReasonProvisioning, volume.Controller("provisioner"),
			"the volume of claim "+c.Name+" is to be created on node "+name),
	}
}

// turn is the place of a node in the order of a claim.
func turn(c Claim, n Node) uint64 {
	h := fnv.New64a()
	for _, s := range []string{string(c.Object.UID), c.Object.ResourceVersion, n.Object.Name} {
		_, _ = h.Write([]byte(s + "/"))
	}
	return h.Sum64()
}
