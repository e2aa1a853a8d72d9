package mount

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// admission is which Pods may have the volume.
type admission struct {
	pods []Consumer
	// label is the label that it is mounted with. remount means that the current mount has another one, which no Pod wants
	// any more.
	label   string
	remount bool
	// own is why other Pods wait, by path; held is the first of these reasons, and has no reason if no Pod waits.
	own  map[string]volume.Because
	held volume.Because
}

func (a *admission) hold(c Consumer, why volume.Because) {
	if len(a.own) == 0 {
		a.held = why
	}
	a.own[c.Path] = why
}

// admit returns the Pods that may have the volume. A Pod that has the volume is never replaced by another one.
func (f Facts) admit() admission {
	a := f.admitLabel()
	has := func(c Consumer) bool { return f.Record.Target(c.Path) != nil }
	all, holders := a.pods, slices.DeleteFunc(slices.Clone(a.pods), func(c Consumer) bool { return !has(c) })
	a.pods = nil
	for _, c := range all {
		excludes := func(o Consumer) bool { return !has(c) && (o.SinglePod || c.SinglePod) }
		if i := slices.IndexFunc(holders, excludes); i >= 0 {
			a.hold(c, inUse(c, holders[i]))
			continue
		}
		a.pods, holders = append(a.pods, c), append(holders, c)
	}
	return a
}

// inUse is the reason of a Pod that does not get a volume because one of its objects is for one Pod only.
func inUse(c, holder Consumer) volume.Because {
	single, name := c.Volume, holder.Namespace+"/"+holder.Name
	if !c.SinglePod {
		single = holder.Volume
	}
	return volume.Sayf(volume.ReasonInUse, volume.PodActor(name),
		"volume %s is for one Pod only and Pod %s has it", single, name)
}

// keeps says whether a Pod has the volume and keeps it. If the volume has been staged for others in another way since,
// it is not published to the Pod again.
func (f Facts) keeps(c Consumer) bool {
	return f.Record.Target(c.Path) != nil && (c.Apart == "" || !f.unpublished(c))
}

// fits says whether a Pod may have the volume, whatever its label.
func (c Consumer) fits() bool { return c.Refused == "" && c.Apart == "" }

// Misplaced returns why a volume is not mounted on a node for a Pod that does not have it yet, or "": its nodeAffinity,
// which may change, excludes the node, which another scheduler than volplane's placement may not have noticed.
func Misplaced(pv *corev1.PersistentVolume, n *corev1.Node) string {
	if pv.Spec.NodeAffinity == nil || topology.Selects(pv.Spec.NodeAffinity.Required, n) {
		return ""
	}
	return "its nodeAffinity excludes node " + n.Name
}

// OneStage says whether a volume that was staged by one object can be published by another one with the same handle:
// both lead to the same NodeStageVolume. Parameters of the other calls may differ, and so may the provisioner's mark,
// which is often missing in objects that users create for its volumes.
func OneStage(x, y *corev1.PersistentVolume) bool {
	staged := func(pv *corev1.PersistentVolume) corev1.CSIPersistentVolumeSource {
		s := *pv.Spec.CSI
		s.VolumeAttributes = maps.Clone(s.VolumeAttributes)
		delete(s.VolumeAttributes, volume.KeyIdentity)
		s.ReadOnly, s.NodePublishSecretRef, s.NodeExpandSecretRef, s.ControllerExpandSecretRef = false, nil, nil, nil
		return s
	}
	return equality.Semantic.DeepEqual(staged(x), staged(y)) && slices.Equal(x.Spec.MountOptions, y.Spec.MountOptions)
}
