package placement

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// podCase is a Pod with what is known of its claims and nodes.
type podCase struct {
	argues string
	facts  Facts
}

func only(name string, one Claim) []Claim {
	one.Name = name
	return []Claim{one}
}

// unlabelled is a claim with a volume that is there for it and without any
// annotation, as its volume.
func unlabelled() []Claim {
	v := available("s", "b", "10Gi")
	c := static(v)
	c[0].Object.Annotations = nil
	return c
}

// foreign is a claim for which a volume of another driver is there.
func foreign(zone string) []Claim {
	v := available("s", zone, "10Gi")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "other", VolumeHandle: "s"}
	return byHand(static(v))
}

// nameless is a FlexVolume whose driver has no name that one of them could have.
func nameless() []Claim {
	c := flexVolume()
	c[0].Volume.Spec.CSI.Driver = "none"
	return c
}

// overfull has more volumes than its driver takes, uncounted a driver that does
// not say how many it takes.
func overfull(n *Node) {
	full(n)
	n.Volumes[driver]["more"] = true
}

func uncounted(n *Node) {
	n.CSI.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{}
}

func inZoneZ(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "z"} }
func apart(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
}

func smallOnly(p *corev1.Pod) {
	bigOnly(p)
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].
		Operator = corev1.NodeSelectorOpLt
}

// oddPods are seldom seen: promises that cannot be kept, claims that are not the
// Pod's, and nodes that are over their limits.
func oddPods() []podCase {
	one, two := []Node{node("n1", "a", 0)}, []Node{node("n1", "a", 3), node("n2", "b", 1)}
	half := []Node{node("n1", "a", 0, down), node("n2", "b", 0)}
	named := claim("")
	named.Spec.VolumeName = "pv"
	return []podCase{
		{"a promise to a node that is down is kept: a volume may be under way there", Facts{
			Pod: pod(), Nodes: half, Claims: lateClaim("n1"),
		}},
		{"a volume that is there is not taken for a claim that one is being made for", Facts{
			Pod: pod(), Nodes: two, Claims: promised(static(available("s", "a", "10Gi")), "n1"),
		}},
		{"a volume that is there needs its driver on the node", Facts{Pod: pod(), Nodes: one, Claims: foreign("a")}},
		{"claims and volumes without annotations get them", Facts{Pod: pod(), Nodes: two, Claims: unlabelled()}},
		{"also when they are told a node", Facts{
			Pod: pod(), Nodes: two, Claims: func() []Claim { c := lateClaim(""); c[0].Object.Annotations = nil; return c }(),
		}},
		{"a claim that is to be made for the Pod is waited for", Facts{
			Pod: pod(), Nodes: one, Claims: only("web-data", Claim{Ephemeral: true}),
		}},
		{"one that was made for it is used", Facts{Pod: pod(), Nodes: one, Claims: only("web-data", Claim{
			Ephemeral: true, Object: claim(""), Volume: everywhere()[0].Volume,
		})}},
		{"one that was made for another Pod is not", Facts{Pod: pod(), Nodes: one, Claims: only("web-data", Claim{
			Ephemeral: true, Stranger: true, Object: claim(""), Volume: everywhere()[0].Volume,
		})}},
		{"a claim that names a volume is the binder's turn", Facts{
			Pod: pod(), Nodes: one, Claims: only("data", Claim{Object: named, Class: lateClass()}),
		}},
		{"a node with more volumes than it takes keeps those that it has", Facts{
			Pod: pod(), Nodes: []Node{node("n4", "a", 0, overfull)}, Claims: bound("a"),
		}},
		{"a driver need not say how many it takes", Facts{
			Pod: pod(), Nodes: []Node{node("n4", "a", 0, uncounted)}, Claims: bound("a"),
		}},
		{"a FlexVolume driver without a name is on no node", Facts{Pod: pod(), Nodes: one, Claims: nameless()}},
		{"a class without a provisioner makes nothing at the promised node", Facts{
			Pod: pod(), Nodes: one, Claims: byHand(promised(static(), "n1")),
		}},
		{"a selector that no node has is told", Facts{Pod: pod(inZoneZ), Nodes: two}},
		{"an affinity that is none of nodes excludes none", Facts{Pod: pod(apart), Nodes: one}},
		{"one that the node has lets the Pod go there", Facts{Pod: pod(smallOnly), Nodes: one}},
		{"as many refusals as are named", Facts{Pod: pod(), Nodes: manyCordoned()[:maxNamed]}},
	}
}
