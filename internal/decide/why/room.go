package why

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/chain"
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
