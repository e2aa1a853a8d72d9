package nodelife

import (
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
	// Silent is how long the Lease has not changed, by the clock of this process: clocks of other
	// hosts are not trusted.
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
