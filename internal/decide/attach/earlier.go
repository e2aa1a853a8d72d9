package attach

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// isOfEarlierMachine says whether a volume is attached under another id of the node than the driver has now, as after a
// machine was replaced, and the node's agent says of all Pods that it does not begin to use the volume for that reason.
// If a Pod may have it, the machine is the same, and the volume stays until the Pod ends.
func (d *nodeDecision) isOfEarlierMachine(a *storagev1.VolumeAttachment, wishes []Wish) bool {
	if !underOtherID(a, d.Registered[a.Spec.Attacher]) || !a.Status.Attached || !HasFinalizer(a) {
		return false
	}
	mayHave := func(w Wish) bool { return w.Pod.DeletionTimestamp != nil || !IsKeptOff(w.Pod) }
	return d.Node != nil && nodelife.Ready(d.Node) && d.ours(a) && !slices.ContainsFunc(wishes, mayHave)
}

// detachFromEarlier detaches a volume from an earlier machine of the node. That the node says that it uses the volume
// is no reason to wait: a Pod that waits for a volume counts, too.
func (d *nodeDecision) detachFromEarlier(a *storagev1.VolumeAttachment, unique string) {
	d.More = true
	d.Detach = append(d.Detach, Detachment{Attachment: a, Unique: unique, Force: true, Because: volume.Sayf(
		volume.ReasonDetaching, volume.Driver(a.Spec.Attacher),
		"%s is attached to %s, and driver %s calls node %s %s now: it is detached from there, and attached anew", Name(a),
		a.Annotations[volume.AnnNodeID], a.Spec.Attacher, d.Name, d.Registered[a.Spec.Attacher])})
}

// IsKeptOff says whether a Pod's node agent says that it does not begin to use the Pod's only volume, because that is
// attached under another id. If the Pod has several, one of them may be mounted.
func IsKeptOff(p *corev1.Pod) bool {
	n := 0
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil {
			n++
		}
	}
	c := cluster.PodCondition(p, volume.ConditionVolumesMounted)
	return n <= 1 && c != nil && c.Status == corev1.ConditionFalse &&
		c.Reason == string(volume.ReasonAttachedUnderOtherID)
}
