package health

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// failedAfter is how long a node is not ready before it counts as failed, as for upstream's monitor.
const failedAfter = 5 * time.Minute

// Used is a claim that Pods on a node use.
type Used struct {
	Claim *corev1.PersistentVolumeClaim
	Pods  []string
}

// NodeFacts are what is known of a node, and of the claims whose Pods run on it.
type NodeFacts struct {
	Name string
	// Node is nil if the node is gone.
	Node *corev1.Node
	// Silent is how long the node has not been ready, by the clock of this process.
	Silent time.Duration
	// Failed means that an event has reported the node's failure to the claims.
	Failed bool
	Claims []Used
}

// Notice is an event about a claim.
type Notice struct {
	Claim   *corev1.PersistentVolumeClaim
	Because volume.Because
}

// NodePlan is what follows.
type NodePlan struct {
	// Wait is the time until the next decision; 0 waits for a change.
	Wait time.Duration
	// Failed says that the node counts as failed from now on.
	Failed  bool
	Notices []Notice
}

// OfFailure decides which events claims get about the node of their Pods. The wording is that of upstream's monitor.
func OfFailure(f NodeFacts) NodePlan {
	switch {
	case f.Node != nil && NotReady(f.Node) && f.Silent < failedAfter && !f.Failed:
		return NodePlan{Wait: failedAfter - f.Silent}
	case f.Node == nil || f.Node.Status.Phase == corev1.NodeTerminated || NotReady(f.Node):
		if f.Failed {
			return NodePlan{Failed: true}
		}
		return NodePlan{Failed: true, Notices: notices(f, failedNotice)}
	case f.Failed:
		return NodePlan{Notices: notices(f, recoveredNotice)}
	}
	return NodePlan{}
}

// NotReady says whether a node has reported its readiness before, and does not report now that it is ready.
func NotReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	})
}

func notices(f NodeFacts, notice func(node string, u Used) volume.Because) []Notice {
	out := make([]Notice, 0, len(f.Claims))
	for _, u := range f.Claims {
		out = append(out, Notice{Claim: u.Claim, Because: notice(f.Name, u)})
	}
	return out
}

func failedNotice(node string, u Used) volume.Because {
	return volume.Sayf(volume.ReasonNodeFailed, volume.NodeAgent(node), "Pods: [ %s ] consuming PVC: %s in namespace: %s "+
		"are now on a failed node: %s", strings.Join(u.Pods, " "), u.Claim.Name, u.Claim.Namespace, node)
}

func recoveredNotice(node string, _ Used) volume.Because {
	return volume.Because{Reason: volume.ReasonNodeRecovered, Message: "Node: " + node + " recovered"}
}
