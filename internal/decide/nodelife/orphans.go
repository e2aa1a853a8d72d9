package nodelife

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

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
