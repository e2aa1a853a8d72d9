package why

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/drivers"
	"volplane.dev/volplane/internal/volume"
)

// unplaced returns why placement, or a cluster's scheduler, found no node for the Pod;
// false when it only waits for its claims, or nothing is known.
func unplaced(p *corev1.Pod) (string, bool) {
	for _, c := range p.Status.Conditions {
		waits := c.Reason == string(volume.ReasonWaitForBind)
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !waits {
			return cmp.Or(c.Message, c.Reason), true
		}
	}
	return "", false
}

// roomless tells of a Pod for which no node had room. If nothing is known of the room,
// the driver may have said why.
func (k known) roomless(p *corev1.Pod, message string, unknown bool) chain.Link {
	l := chain.New("pod/"+p.Name, chain.Problem, volume.ReasonNotEnoughStorage, message, "user")
	if !unknown {
		return l
	}
	l.Because.Reason = volume.ReasonCapacityUnknown
	for _, name := range cluster.ClaimNames(p) {
		f := k.claim(p.Namespace, name)
		if f.Claim == nil || f.Claim.Spec.VolumeName != "" || f.Class == nil {
			continue
		}
		l.Because.Next = f.Class.Provisioner
		if e := f.Warnings.About(f.Class.UID, volume.ReasonCapacityUnknown); e != nil {
			l.Because.Message, l.Because.Next = message+"; "+e.Message, volume.NextAfter(e.Message, l.Because.Next)
		}
		break
	}
	return l
}

// homeless tells of a Pod that found no node, and what to do when that is for
// want of a driver of a host.
func (k known) homeless(p *corev1.Pod, message string) chain.Link {
	if short, unknown := capacity.Short(message); short {
		return k.roomless(p, message, unknown)
	}
	next := "user"
	for _, s := range drivers.OfPod(k.view, p) {
		elsewhere := s.Elsewhere(message)
		if elsewhere == "" {
			continue
		}
		if b, ok := drivers.Lacks(k.view, p, k.only()); ok {
			message, next = "0/1 nodes are available: "+b.Message, b.Next
			break
		}
		message += elsewhere
		next = "administrator of a node"
		break
	}
	return k.unschedulable(p, message, next)
}

// only returns the name of the only node; "" when there are more.
func (k known) only() string {
	if len(k.Nodes) != 1 {
		return ""
	}
	return k.Nodes[0].Name
}
