package attach

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Memory is what only the acting process knows; other processes use the zero value.
type Memory struct {
	// Creating are the drivers of attachments to the node whose creation has begun and that are not visible yet, by name.
	Creating map[string]string
	// Deleting are the attachments whose deletion was requested, although they do not show it yet.
	Deleting map[types.UID]bool
	// Overdue says whether an attachment has waited to be detached for longer than a healthy node needs.
	Overdue func(types.UID) bool
	// Had says whether a volume has been attached to a node that may still have it.
	Had func(node, unique string) bool
	// Near says whether the attacher of a driver runs in this process and calls the driver.
	Near func(driver string) bool
	// DisableForceDetachOnTimeout is that of NodeFacts.
	DisableForceDetachOnTimeout bool
}

// FactsOf gathers the facts about a node.
func FactsOf(view cluster.View, node string, m Memory) NodeFacts {
	f := NodeFacts{
		Name: node, Creating: m.Creating, Attachments: view.Attachments.By(cluster.AttachmentsByNode, node),
		Volumes:  map[string]*corev1.PersistentVolume{},
		Deleting: map[string]bool{}, Overdue: map[string]bool{}, Limits: map[string]int{}, NodeIDs: map[string]string{},
		Registered:                  map[string]string{},
		DisableForceDetachOnTimeout: m.DisableForceDetachOnTimeout,
	}
	f.Node, _ = view.Nodes.Get(node)
	for _, a := range f.Attachments {
		if v := VolumeOf(view, a); v != nil {
			f.Volumes[v.Name] = v
		}
		f.Deleting[a.Name] = m.Deleting[a.UID]
		f.Overdue[a.Name] = m.Overdue != nil && m.Overdue(a.UID)
	}
	for _, p := range view.Pods.By(cluster.PodsByNode, node) {
		// A Pod that is being deleted counts until its node has unmounted the volume and removed the Pod.
		if !cluster.Finished(p) {
			f.addWishes(view, p, m.Had)
		}
	}
	f.addDrivers(view, m.Near)
	return f
}

// AttachmentFacts gathers those facts about one attachment that are in the API.
func AttachmentFacts(view cluster.View, a *storagev1.VolumeAttachment) Facts {
	csiNode, _ := view.CSINodes.Get(a.Spec.NodeName)
	node, _ := view.Nodes.Get(a.Spec.NodeName)
	return Facts{Attachment: a, Volume: SourceOf(a, VolumeOf(view, a)), NodeID: NodeID(csiNode, a, node)}
}

// VolumeOf returns the PersistentVolume that an attachment names; nil if there is none.
func VolumeOf(view cluster.View, a *storagev1.VolumeAttachment) *corev1.PersistentVolume {
	if a.Spec.Source.PersistentVolumeName == nil {
		return nil
	}
	v, _ := view.Volumes.Get(*a.Spec.Source.PersistentVolumeName)
	return v
}

// SkipsAttach says whether a driver's volumes need not be attached (S1-089).
func SkipsAttach(d *storagev1.CSIDriver) bool {
	return d != nil && d.Spec.AttachRequired != nil && !*d.Spec.AttachRequired
}

// addDrivers adds what the node's drivers have registered.
func (f *NodeFacts) addDrivers(view cluster.View, near func(driver string) bool) {
	n, ok := view.CSINodes.Get(f.Name)
	if !ok {
		return
	}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			f.Limits[d.Name] = int(*d.Allocatable.Count)
		}
		f.Registered[d.Name] = d.NodeID
		if near != nil && near(d.Name) {
			f.NodeIDs[d.Name] = d.NodeID
		}
	}
}

// addWishes adds the volumes that a Pod wants. Inline volumes are not attached, and a generic ephemeral
// volume counts only if its claim belongs to the Pod.
func (f *NodeFacts) addWishes(view cluster.View, p *corev1.Pod, had func(node, unique string) bool) {
	for i := range p.Spec.Volumes {
		var v *corev1.PersistentVolume
		switch s := &p.Spec.Volumes[i]; {
		case s.PersistentVolumeClaim != nil:
			v = boundVolume(view, p.Namespace+"/"+s.PersistentVolumeClaim.ClaimName, nil)
		case s.Ephemeral != nil:
			v = boundVolume(view, p.Namespace+"/"+volume.EphemeralClaim(p.Name, s.Name), p)
		}
		if v != nil {
			f.Desired = append(f.Desired, desiredVolume(view, f.Name, v, p, had))
		}
	}
}

// boundVolume returns the volume that a claim is bound to, if both objects say so. If owner is set, it
// must control the claim.
func boundVolume(view cluster.View, claim string, owner *corev1.Pod) *corev1.PersistentVolume {
	pvc, ok := view.Claims.Get(claim)
	if !ok || pvc.Status.Phase != corev1.ClaimBound || owner != nil && !metav1.IsControlledBy(pvc, owner) {
		return nil
	}
	v, ok := view.Volumes.Get(pvc.Spec.VolumeName)
	if !ok || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != pvc.UID {
		return nil
	}
	return v
}

func desiredVolume(
	view cluster.View, node string, v *corev1.PersistentVolume, p *corev1.Pod, had func(node, unique string) bool,
) DesiredVolume {
	w := DesiredVolume{Volume: v, Pod: p}
	if d, ok := view.Drivers.Get(v.Spec.CSI.Driver); ok {
		w.Needless = SkipsAttach(d)
	}
	if Shareable(v) {
		return w
	}
	var user *corev1.Pod
	if w.Elsewhere = elsewhere(view, v, node); len(w.Elsewhere) > 0 {
		user = holder(view, w.Elsewhere[0])
	} else {
		w.UsedOn, user = usedOn(view, v, node, had)
	}
	w.Holder = nameIn(p.Namespace, user)
	return w
}

// nameIn returns a Pod's name for messages in a namespace: with its own namespace if that differs; empty for nil.
func nameIn(namespace string, p *corev1.Pod) string {
	switch {
	case p == nil:
		return ""
	case p.Namespace != namespace:
		return p.Namespace + "/" + p.Name
	}
	return p.Name
}

// InUseElsewhere says whether another node uses a volume.
func InUseElsewhere(
	view cluster.View, v *corev1.PersistentVolume, node string, had func(node, unique string) bool,
) bool {
	away, _ := usedOn(view, v, node, had)
	return len(elsewhere(view, v, node)) > 0 || away != ""
}

// usedOn returns another ready node whose volumesInUse has the volume, even if its attachment was deleted by force, and
// the running Pod that has the volume, if any. The entry counts if one of the node's Pods has the volume, or if no Pod
// is left but the volume was attached there: any node can claim to use any volume, and one that waits for a volume has
// an entry, too.
func usedOn(
	view cluster.View, v *corev1.PersistentVolume, node string, had func(node, unique string) bool,
) (name string, pod *corev1.Pod) {
	unique := volume.UniqueName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)
	for _, n := range view.Nodes.By(cluster.NodesByVolume, unique) {
		if n.Name == node || !Trusted(n) {
			continue
		}
		if pod, has, waits := podsOf(view, v, n.Name); has || !waits && had != nil && had(n.Name, unique) {
			return n.Name, pod
		}
	}
	return "", nil
}

// podsOf returns a Pod of a node that has a volume, whether any Pod has it, and whether any waits for it. A finished
// Pod may have it if none waits; it is not returned.
func podsOf(view cluster.View, v *corev1.PersistentVolume, node string) (pod *corev1.Pod, has, waits bool) {
	ended := false
	for _, same := range view.Volumes.By(cluster.VolumesByHandle, Key(v)) {
		ref := same.Spec.ClaimRef
		if ref == nil {
			continue
		}
		for _, p := range view.Pods.By(cluster.PodsByClaim, ref.Namespace+"/"+ref.Name) {
			switch {
			case p.Spec.NodeName != node:
			case cluster.Finished(p):
				ended = true
			case p.DeletionTimestamp != nil || cluster.Mounted(p):
				return p, true, waits
			default:
				waits = true
			}
		}
	}
	return nil, ended && !waits, waits
}

// Key returns a volume's key in the index cluster.VolumesByHandle. Several objects may have the same one.
func Key(v *corev1.PersistentVolume) string {
	return volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)
}

// elsewhere returns the attachments of a volume to other nodes, also those of other objects with the same handle.
func elsewhere(view cluster.View, v *corev1.PersistentVolume, node string) []*storagev1.VolumeAttachment {
	names := []string{v.Name}
	for _, same := range view.Volumes.By(cluster.VolumesByHandle, Key(v)) {
		if same.Name != v.Name {
			names = append(names, same.Name)
		}
	}
	var out []*storagev1.VolumeAttachment
	for _, name := range names {
		for _, a := range view.Attachments.By(cluster.AttachmentsByVolume, name) {
			if a.Spec.NodeName != node && !namesOther(a, v) {
				out = append(out, a)
			}
		}
	}
	return out
}

// holder returns a Pod that uses an attachment's volume on its node; nil if none is known.
func holder(view cluster.View, a *storagev1.VolumeAttachment) (pod *corev1.Pod) {
	v := VolumeOf(view, a)
	if v == nil || v.Spec.ClaimRef == nil {
		return nil
	}
	for _, p := range view.Pods.By(cluster.PodsByClaim, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name) {
		if p.Spec.NodeName == a.Spec.NodeName && !cluster.Finished(p) {
			pod = p
		}
	}
	return pod
}

// migratedHandle returns the handle that an in-tree volume has at the CSI driver that has taken over its plugin; "" if
// it is not certain. Upstream's attacher records none. The attachment's name is derived from the handle, and so proves
// it.
func migratedHandle(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) string {
	if v == nil || v.Spec.CSI != nil {
		return ""
	}
	for _, id := range cluster.InTreeIDs(v) {
		last := id[strings.LastIndex(id, "/")+1:]
		for _, handle := range append([]string{id, last}, gceHandles(v, id)...) {
			if handle != "" && a.Name == NameOf(a.Spec.Attacher, handle, a.Spec.NodeName) {
				return handle
			}
		}
	}
	return ""
}

// gceHandles returns the handles that a disk of GCE may have.
func gceHandles(v *corev1.PersistentVolume, disk string) []string {
	out := []string{"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/" + disk}
	for _, label := range []string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone} {
		zone, _, _ := strings.Cut(v.Labels[label], "__")
		if zone == "" {
			continue
		}
		region := zone[:max(strings.LastIndex(zone, "-"), 0)]
		out = append(out, "projects/UNSPECIFIED/zones/"+zone+"/disks/"+disk,
			"projects/UNSPECIFIED/regions/"+region+"/disks/"+disk)
	}
	return out
}

// Wanted returns the plan's condition of a volume that a Pod wants and that has no attachment to the node.
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
