package nodelife

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// OutOfService says whether a node has the taint out-of-service.
func OutOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// Dead says whether a node is off: it has the taint out-of-service, and its agent does not report
// Ready.
func Dead(n *corev1.Node) bool { return n != nil && OutOfService(n) && !Ready(n) }

// DeadPlan is the decision about the Pods of a dead node.
type DeadPlan struct {
	// Delete are the Pods to delete with a grace period of 0.
	Delete  []*corev1.Pod
	Because volume.Because
}

// DeadPods decides about the Pods of a node. If the node is dead, it deletes those that are
// terminating, because no agent ends them, and those that do not tolerate the taint, as Kubernetes'
// Pod garbage collector does.
func DeadPods(name string, n *corev1.Node, pods []*corev1.Pod) DeadPlan {
	switch {
	case n == nil:
		return DeadPlan{Because: volume.Because{Reason: volume.ReasonNothingToDo, Message: "node " + name + " is gone"}}
	case !OutOfService(n):
		return DeadPlan{Because: volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "node " + name + " does not have the out-of-service taint",
		}}
	case Ready(n):
		return DeadPlan{Because: volume.Say(volume.ReasonNodeReady, volume.NodeAgent(name),
			"node "+name+" has the out-of-service taint, but its agent is alive and manages its pods")}
	}
	p := DeadPlan{}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || evicted(n, pod) {
			p.Delete = append(p.Delete, pod)
		}
	}
	if len(p.Delete) == 0 {
		p.Because = volume.Because{
			Reason: volume.ReasonNothingToDo, Message: "node " + name + " is out of service, and no pod has to be deleted " +
				"from it",
		}
		return p
	}
	p.Because = volume.Because{
		Reason: volume.ReasonNodeGone, Message: fmt.Sprintf("node %s is not ready and has the taint %s: its pods are deleted",
			name, corev1.TaintNodeOutOfService),
	}
	return p
}

// evicted says whether the taint evicts a Pod. A toleration with a time limit is left to the
// component that has set it.
func evicted(n *corev1.Node, p *corev1.Pod) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		_, tolerated := tolerates(p, t)
		return t.Key == corev1.TaintNodeOutOfService && t.Effect == corev1.TaintEffectNoExecute && !tolerated
	})
}

// Tolerates says whether a toleration matches a taint, by the rules of the API.
func Tolerates(o corev1.Toleration, t corev1.Taint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	switch o.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return o.Key != "" && o.Value == t.Value
	}
	return false
}

// EvictedAt says whether the taints of a node drive a Pod away, and when; the time is zero if they do so immediately.
func EvictedAt(p *corev1.Pod, n *corev1.Node) (at time.Time, going bool) {
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		stays, tolerated := tolerates(p, t)
		switch {
		case !tolerated:
			return time.Time{}, true
		case stays == nil || t.TimeAdded == nil:
		case !going || t.TimeAdded.Add(*stays).Before(at):
			at, going = t.TimeAdded.Add(*stays), true
		}
	}
	return at, going
}

// tolerates says whether a Pod tolerates a taint, and for how long; nil means forever.
func tolerates(p *corev1.Pod, t corev1.Taint) (stays *time.Duration, tolerated bool) {
	for _, o := range p.Spec.Tolerations {
		if !Tolerates(o, t) {
			continue
		}
		tolerated = true
		if o.TolerationSeconds == nil {
			continue
		}
		if d := time.Duration(*o.TolerationSeconds) * time.Second; stays == nil || d < *stays {
			stays = &d
		}
	}
	return stays, tolerated
}
