package attach

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// Wanted returns the plan's condition of a volume that a Pod wants and that has no attachment to the
// node.
func (p NodePlan) Wanted(v *corev1.PersistentVolume, node string) volume.Condition {
	if i := slices.IndexFunc(p.Notices, func(n Notice) bool { return n.Warn && n.Volume == v.Name }); i >= 0 {
		b := p.Notices[i].Because
		return volume.Condition{Because: b, Stuck: b.Reason != volume.ReasonMultiAttach}
	}
	if slices.ContainsFunc(p.Attach, func(a Attachable) bool { return a.Volume.Name == v.Name }) {
		return volume.Condition{Because: volume.Say(volume.ReasonAttaching, volume.Controller("attachdetach"),
			"volume "+v.Name+" is about to be attached to node "+node)}
	}
	return volume.Condition{Because: p.Because, Stuck: p.Because.Reason == volume.ReasonNodeGone}
}

// Unwanted returns the condition that the plan gives an attachment; false if Pods want it, or if the attacher acts
// next.
func (p NodePlan) Unwanted(a *storagev1.VolumeAttachment) (volume.Condition, bool) {
	if i := slices.IndexFunc(p.Detach, func(d Detachment) bool { return d.Attachment.Name == a.Name }); i >= 0 {
		return volume.Condition{Because: p.Detach[i].Because, Stuck: p.Detach[i].Stuck}, true
	}
	if slices.ContainsFunc(p.Kept, func(k *storagev1.VolumeAttachment) bool { return k.Name == a.Name }) &&
		a.Status.Attached && a.DeletionTimestamp == nil {
		return volume.Condition{Because: volume.Say(volume.ReasonStillAttached, volume.User(),
			Name(a)+" is attached to node "+a.Spec.NodeName+" by attachment "+a.Name+", which volplane did not create "+
				"and will not delete")}, true
	}
	return volume.Condition{}, false
}

// ConditionOf returns the condition of an attachment when the attacher acts next.
func ConditionOf(f Facts) volume.Condition {
	a, p := f.Attachment, Attachment(f)
	failed := a.Status.AttachError
	if a.DeletionTimestamp != nil {
		failed = a.Status.DetachError
	}
	switch {
	case failed != nil && f.Volume != nil && f.Volume.Spec.CSI == nil:
		// Upstream's attacher also serves volumes that are not CSI volumes: its report counts, not what this decision would
		// say.
		return volume.Condition{Because: Failed(a, a.DeletionTimestamp != nil, AnswerOf(failed)), Stuck: true}
	case p.Step == Refuse:
		return volume.Condition{Because: p.Because, Stuck: true}
	case failed != nil && (p.Step != Nothing || a.Status.Attached && a.DeletionTimestamp == nil):
		return volume.Condition{Because: Failed(a, a.DeletionTimestamp != nil, AnswerOf(failed)), Stuck: true}
	}
	return volume.Condition{Because: p.Because}
}
