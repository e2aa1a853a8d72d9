package nodelife

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Facts is what the decision about one node depends on.
type Facts struct {
	Node *corev1.Node
	// Leased means that the Lease of the node was renewed at least once. Otherwise it is unknown whether an agent has
	// stopped.
	Leased bool
	// Silent is how long the Lease has not changed, by the clock of this process: clocks of other hosts are not trusted.
	Silent time.Duration
	// Grace is how long the Lease may stay unchanged.
	Grace time.Duration
}

// Plan is the decision about a node.
type Plan struct {
	// Mark means that the node's condition Ready becomes Unknown.
	Mark bool
	// Wait is the time until the next decision; 0 waits for a change.
	Wait    time.Duration
	Because volume.Because
}

// Node decides about one node.
func Node(f Facts) Plan {
	name := f.Node.Name
	switch {
	case !f.Leased:
		return Plan{Because: volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "node " + name + " sends no heartbeats, so it is not known when it stops",
		}}
	case f.Silent < f.Grace:
		return Plan{Wait: f.Grace - f.Silent, Because: volume.Because{
			Reason: volume.ReasonNodeReady, Message: "node " + name + " sends heartbeats",
		}}
	case !Ready(f.Node):
		return Plan{
			Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + name + " is known not to be ready"},
		}
	}
	return Plan{Mark: true, Because: volume.Sayf(volume.ReasonNodeNotReady, volume.NodeAgent(name),
		"the agent of node %s has sent no heartbeat for %s; what is mounted there stays, nothing new is", name,
		f.Silent.Round(time.Second))}
}

// Ready says whether a node reports Ready.
func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// OrphanFacts are the facts for the decision about the Pods of a missing node.
type OrphanFacts struct {
	Name string
	// Node is the Node object, if it exists again.
	Node *corev1.Node
	// Pods are the Pods that are bound to the node.
	Pods []*corev1.Pod
	// Missing is how long the Node has not existed, by the clock of this process. Grace is how long
	// its agent may take to create it again.
	Missing, Grace time.Duration
}

// OrphanPlan is the decision about these Pods.
type OrphanPlan struct {
	// Delete are the Pods to delete with a grace period of 0.
	Delete []*corev1.Pod
	// Wait is the time until the next decision; 0 waits for a change.
	Wait    time.Duration
	Because volume.Because
}

// Orphans decides about the Pods of a node whose object was deleted, which means that the node is gone. A running agent
// creates its object again within moments; Kubernetes allows the same time.
func Orphans(f OrphanFacts) OrphanPlan {
	switch {
	case f.Node != nil:
		return OrphanPlan{Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + f.Name + " is there"}}
	case len(f.Pods) == 0:
		return OrphanPlan{
			Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + f.Name + " is gone, and has no pods"},
		}
	case f.Missing < f.Grace:
		return OrphanPlan{Wait: f.Grace - f.Missing, Because: volume.Say(volume.ReasonNodeGone, volume.NodeAgent(f.Name),
			"node "+f.Name+" is gone, its pods wait for it to come back")}
	}
	return OrphanPlan{Delete: f.Pods, Because: volume.Because{
		Reason:  volume.ReasonNodeGone,
		Message: fmt.Sprintf("node %s has been gone for %s, its pods are deleted", f.Name, f.Missing.Round(time.Second)),
	}}
}
