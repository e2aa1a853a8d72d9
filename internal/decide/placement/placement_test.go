package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "d.example.com"

func node(name, zone string, pods int, change ...func(*Node)) Node {
	n := Node{
		Object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone, "cpus": "8"}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		},
		CSI:  &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver}}}},
		Pods: pods, Volumes: map[string]map[string]bool{},
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

func down(n *Node)     { n.Object.Status.Conditions[0].Status = corev1.ConditionFalse }
func cordoned(n *Node) { n.Object.Spec.Unschedulable = true }
func bare(n *Node)     { n.CSI = nil }
func full(n *Node) {
	n.CSI.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(1))}
	n.Volumes[driver] = map[string]bool{"h": true}
}

func going(n *Node) { n.Object.DeletionTimestamp = &metav1.Time{} }
func roomForOne(n *Node) {
	full(n)
	n.Volumes[driver] = nil
}
func others(n *Node) { n.CSI.Spec.Drivers[0].Name = "other" }
func avoided(n *Node) {
	n.Object.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectPreferNoSchedule}}
}

func tainted(n *Node) {
	n.Object.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
}

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	for _, f := range change {
		f(p)
	}
	return p
}

func tolerant(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Value: "db"}}
}

func tolerantOfAll(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

func tolerantOfOthers(p *corev1.Pod) {
	p.Spec.Tolerations = []corev1.Toleration{
		{Key: "dedicated", Value: "web"},
		{Key: "other", Value: "db"},
		{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoExecute},
		{Key: "dedicated", Value: "db", Operator: "Lt"},
	}
}
func pinned(p *corev1.Pod)  { p.Spec.NodeName = "n9" }
func inZoneB(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }
func bigOnly(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "cpus", Operator: corev1.NodeSelectorOpGt, Values: []string{"16"}},
			}}},
		}},
	}
}

func claim(selected string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{}}}
	if selected != "" {
		c.Annotations[volume.AnnSelectedNode] = selected
	}
	return c
}

func lateClass(allowed ...corev1.TopologySelectorTerm) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), AllowedTopologies: allowed,
	}
}

func lateClaim(selected string, allowed ...corev1.TopologySelectorTerm) []Claim {
	return []Claim{{Name: "data", Object: claim(selected), Class: lateClass(allowed...)}}
}

func bound(zone string) []Claim {
	return []Claim{{
		Name: "data", Object: claim(""),
		Volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			NodeAffinity: topology.Affinity([]topology.Segment{{"zone": zone}}),
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"},
			},
		}},
	}}
}

// flexVolume is a claim with a FlexVolume, flexNode a node that serves some.
func flexVolume() []Claim {
	c := everywhere()
	c[0].Volume.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/d"}
	return c
}

func flexNode(n *Node) { n.Object.Annotations = map[string]string{volume.AnnDriverNotes: "{}"} }

// everywhere is a claim with a volume that every node reaches.
func everywhere() []Claim {
	c := bound("a")
	c[0].Volume.Spec.NodeAffinity = nil
	return c
}

// available is a volume of the class that no claim has.
func available(name, zone, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "fast", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			NodeAffinity: topology.Affinity([]topology.Segment{{"zone": zone}}),
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
}

func static(volumes ...*corev1.PersistentVolume) []Claim {
	c := lateClaim("")
	c[0].Object.Spec.StorageClassName = ptr.To("fast")
	c[0].Object.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("6Gi")}
	c[0].Free = bind.NewFree()
	for _, v := range volumes {
		if v.Spec.ClaimRef != nil {
			c[0].Reserved = append(c[0].Reserved, v)
		}
		c[0].Free.Set(v)
	}
	return c
}

func byHand(claims []Claim) []Claim {
	for _, c := range claims {
		c.Class.Provisioner = volume.NoProvisioner
	}
	return claims
}

func promised(claims []Claim, node string) []Claim {
	claims[0].Object.Annotations = map[string]string{volume.AnnSelectedNode: node}
	return claims
}

func small(claims []Claim) []Claim {
	claims[0].Name, claims[0].Object.Name = "small", "small"
	claims[0].Object.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return claims
}

func lost() *corev1.PersistentVolumeClaim {
	c := claim("")
	c.Status.Phase = corev1.ClaimLost
	return c
}

// measured are claims of a driver that wants its capacity to be looked at, with
// what it told of some zones.
func measured(claims []Claim, zones map[string]string) []Claim {
	for i := range claims {
		c := &claims[i]
		c.Object.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("6Gi")}
		c.Driver = &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}
		for zone, size := range zones {
			c.Capacities = append(c.Capacities, &storagev1.CSIStorageCapacity{
				StorageClassName: "fast", NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": zone}},
				Capacity: ptr.To(resource.MustParse(size)),
			})
		}
	}
	return claims
}

// upTo are claims of a driver that says how large a volume it makes, whatever is free.
func upTo(size string, claims []Claim) []Claim {
	for _, c := range claims {
		for _, o := range c.Capacities {
			o.MaximumVolumeSize = ptr.To(resource.MustParse(size))
		}
	}
	return claims
}

func manyCordoned() (all []Node) {
	for i := range 12 {
		all = append(all, node(fmt.Sprintf("n%02d", i), "a", 0, cordoned))
	}
	return all
}

// between are the facts of a Pod that has claims and may run on some nodes.
func between(nodes []Node, claims []Claim) Facts {
	return Facts{Pod: pod(), Nodes: nodes, Claims: claims}
}

func TestPods(t *testing.T) {
	var out strings.Builder
	for _, c := range slices.Concat(readyPods(), refusedPods(), oddPods(), originPods(),
		refusedNodes()) {
		p := Pod(c.facts)
		if p.Because.Reason == "" || p.Because.Message == "" {
			t.Errorf("%s: no reason", c.argues)
		}
		fmt.Fprintf(&out, "# %s\nnode=%q bind=%v\n", c.argues, p.Node, p.Bind)
		for _, v := range p.Reserve {
			fmt.Fprintf(&out, "reserve %s\n%s", v.Name,
				golden.Change(t, available(v.Name, v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0],
					v.Spec.Capacity.Storage().String()), v))
		}
		for _, s := range p.Select {
			was := slices.IndexFunc(c.facts.Claims, func(c Claim) bool { return c.Name == s.Name })
			fmt.Fprintf(&out, "select for claim %s\n%s", s.Name, golden.Change(t, c.facts.Claims[was].Object, s))
		}
		fmt.Fprintf(&out, "%s: %s -> %s\n\n", p.Because.Reason, p.Because.Message, p.Because.Next)
	}
	golden.Equal(t, "testdata/pods.txt", out.String())
}

// twoNodes are one in each of two zones.
func twoNodes() []Node { return []Node{node("n1", "a", 3), node("n2", "b", 1)} }

// readyPods are those whose volumes are there, or may be made.
func readyPods() []podCase {
	two := twoNodes()
	onlyA := corev1.TopologySelectorTerm{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a"}}},
	}
	return []podCase{
		{"without volumes the emptiest node is taken", Facts{Pod: pod(), Nodes: two}},
		{"a bound volume draws its Pod to where it is", between(two, bound("a"))},
		{"a late claim is told the node first", between(two, lateClaim(""))},
		{"a node that was promised comes first, even for volumes that are reachable everywhere", between(two,
			promised(everywhere(), "n1"))},
		{"a promised node is kept", between(two, lateClaim("n1"))},
		{"the class's topologies bind", between(two, lateClaim("", onlyA))},
		{"a promise to a node that is gone is void", between(two, lateClaim("n7"))},
		{"a Pod that named its node has its claims told", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0, down)}, Claims: lateClaim(""),
		}},
		{"but not when another Pod has told them another node", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0)}, Claims: lateClaim("n1"),
		}},
		{"a Pod whose claims are bound and that named its node needs nothing", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0)}, Claims: bound("a"),
		}},
		{"a Pod that named a node that is not there", Facts{Pod: pod(pinned), Claims: lateClaim("")}},
		{"a volume that is there is reserved for a late claim", between(two,
			static(available("s", "b", "10Gi"), available("m", "b", "7Gi")))},
		{"one elsewhere is not worth a fuller node", between(two, static(available("s", "a", "10Gi")))},
		{"a class without a provisioner has only such volumes", between(two, byHand(static(available("s", "c", "10Gi"))))},
		{"a volume is not given to two claims, and the smaller claim gets the smaller one", between(two, byHand(append(
			static(available("s", "a", "10Gi"), available("m", "a", "7Gi")),
			small(static(available("s", "a", "10Gi"), available("m", "a", "7Gi")))...)))},
		{"one volume for two claims is not enough", between(two,
			byHand(append(static(available("s", "a", "10Gi")), small(static(available("s", "a", "10Gi")))...)))},
		{"a volume that refers to the claim is the binder's turn", between(two,
			static(reserved(available("s", "a", "10Gi"), claim(""))))},
		{"what is promised to a node is made there", between(two, promised(static(available("s", "b", "10Gi")), "n1"))},
	}
}

// refusedPods are those that wait, and nodes that are not for them.
func refusedPods() []podCase {
	two, dying := twoNodes(), claim("")
	dying.DeletionTimestamp = &metav1.Time{}
	return []podCase{
		{"a claim that lost its volume", between(two, []Claim{{Name: "data", Object: lost()}})},
		{"a claim for one Pod is waited for", between(two, []Claim{{Name: "data", Object: claim(""), Holder: "db"}})},
		{"a volume that is there already does not count twice", between([]Node{node("n4", "a", 0, full)}, bound("a"))},
		{"two volumes need room for two", between([]Node{node("n4", "a", 0, roomForOne)},
			append(lateClaim(""), small(lateClaim(""))...))},
		{"one has it", between([]Node{node("n4", "a", 0, roomForOne)}, lateClaim(""))},
		{"another driver is no driver", between([]Node{node("n4", "a", 0, others)}, lateClaim(""))},
		{
			"a FlexVolume driver that is not there is named",
			between([]Node{node("n3", "a", 0, bare), node("n4", "a", 0, others, flexNode)}, flexVolume()),
		},
		{"a node that is going takes nobody", Facts{Pod: pod(), Nodes: []Node{node("n4", "a", 0, going)}}},
		{"a volume of no driver goes with its affinity", between(two,
			[]Claim{{Name: "data", Object: claim(""), Volume: &corev1.PersistentVolume{}}})},
		{"many refusals are not all named", Facts{Pod: pod(), Nodes: manyCordoned()}},
		{"a preference is none here", Facts{Pod: pod(), Nodes: []Node{node("n5", "a", 0, avoided)}}},
		{"everything is tolerated", Facts{Pod: pod(tolerantOfAll), Nodes: []Node{node("n5", "a", 0, tainted)}}},
		{"other taints are tolerated", Facts{Pod: pod(tolerantOfOthers), Nodes: []Node{node("n5", "a", 0, tainted)}}},
		{"a claim that is not there is waited for", between(two, []Claim{{Name: "data"}})},
		{"a claim that is going is not used any more", between(two, []Claim{{Name: "data", Object: dying}})},
		{"a claim that binds at once does so first", between(two, []Claim{{Name: "data", Object: claim("")}})},
		{"everything that refuses a node is said", Facts{Pod: pod(), Claims: lateClaim(""), Nodes: []Node{
			node("n1", "a", 0, down), node("n2", "a", 0, cordoned), node("n3", "a", 0, bare), node("n4", "a", 0, full),
			node("n5", "a", 0, tainted),
		}}},
		{"a taint is tolerated", Facts{Pod: pod(tolerant), Nodes: []Node{node("n5", "a", 0, tainted)}}},
		{"a selector is followed", Facts{Pod: pod(inZoneB), Nodes: two}},
		{"so is an affinity", Facts{Pod: pod(bigOnly), Nodes: two}},
		{"a volume that no node reaches", between(two, bound("z"))},
		{"a node without room is passed over", between(two,
			measured(lateClaim(""), map[string]string{"a": "6Gi", "b": "5Gi"}))},
		{"a node with clearly more room is better than one with fewer Pods", between(
			[]Node{node("n1", "a", 0), node("n2", "b", 5)},
			measured(lateClaim(""), map[string]string{"a": "10Gi", "b": "60Gi"}))},
		{"with about the same room the one with fewer Pods is better", between(
			[]Node{node("n1", "a", 5), node("n2", "b", 0)},
			measured(lateClaim(""), map[string]string{"a": "59Gi", "b": "55Gi"}))},
		{"a node with nothing free is the last, whatever the driver makes there", between(
			[]Node{node("n1", "a", 0), node("n2", "b", 5)},
			upTo("10Gi", measured(lateClaim(""), map[string]string{"a": "0", "b": "1Gi"})))},
		{"no node has room", between(two, measured(lateClaim(""), map[string]string{"b": "5Gi"}))},
		{"at the promised node the volume may be there already", between(two,
			measured(lateClaim("n2"), map[string]string{"a": "6Gi", "b": "0"}))},
		{"a promise to a node that is gone gives no room", between(two,
			measured(lateClaim("n7"), map[string]string{"a": "6Gi", "b": "0"}))},
		{"a volume that is there needs no room", between(two, measured(static(available("s", "b", "10Gi")), nil))},
		{"nor does a Pod that named its node ask", Facts{
			Pod: pod(pinned), Nodes: []Node{node("n9", "a", 0)}, Claims: measured(lateClaim(""), nil),
		}},
		{"no nodes at all", Facts{Pod: pod()}},
	}
}
