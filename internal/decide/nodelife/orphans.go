package nodelife

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// OrphanFacts is everything that a decision about the Pods of a missing node
// looks at.
type OrphanFacts struct {
	Name string
	// Node is the object, if there is one again.
	Node *corev1.Node
	// Pods are those that are on the node.
	Pods []*corev1.Pod
	// Missing is how long there has been none, as seen from here, and Grace how
	// long its agent may take to make it again.
	Missing, Grace time.Duration
}

// OrphanPlan is what is done about them.
type OrphanPlan struct {
	// Delete are Pods that are deleted without asking their node.
	Delete []*corev1.Pod
	// Wait is when to look again; 0 is not before something changes.
	Wait    time.Duration
	Because volume.Because
}

// Orphans decides about the Pods of a node whose object was deleted. Somebody
// has said that the node is no more; a living agent makes its object again within
// moments, and Kubernetes gives it the same time.
func Orphans(f OrphanFacts) OrphanPlan {
	switch {
	case f.Node != nil:
		return OrphanPlan{Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + f.Name + " is there"}}
	case len(f.Pods) == 0:
		return OrphanPlan{
			Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + f.Name + " is gone, and has no pods"},
		}
	case f.Missing < f.Grace:
		return OrphanPlan{Wait: f.Grace - f.Missing, Because: volume.Because{
			Reason: volume.ReasonNodeGone, Next: "node " + f.Name,
			Message: "node " + f.Name + " is gone, its pods wait for it to come back",
		}}
	}
	return OrphanPlan{Delete: f.Pods, Because: volume.Because{
		Reason:  volume.ReasonNodeGone,
		Message: fmt.Sprintf("node %s has been gone for %s, its pods are deleted", f.Name, f.Missing.Round(time.Second)),
	}}
}
