package why

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// attachments tells, for each node, whether the volume is attached where it is
// wanted and only there.
func (f facts) attachments() []Link {
	if f.Volume == nil || f.Volume.Spec.CSI == nil || f.Driver != nil && f.Driver.Spec.AttachRequired != nil && !*f.Driver.Spec.AttachRequired {
		return nil
	}
	var out []Link
	wanted := f.wanted()
	for _, node := range wanted {
		out = append(out, f.attachedTo(node))
	}
	for _, a := range f.attached() {
		if !slices.Contains(wanted, a.Spec.NodeName) && f.OnlyPod == "" {
			out = append(out, f.leaving(a))
		}
	}
	return out
}

// wanted returns the nodes of the Pods that are told of, each once.
func (f facts) wanted() []string {
	var out []string
	for _, p := range f.told() {
		if n := p.Spec.NodeName; n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func attachmentSubject(node string) string { return "attachment/" + node }

func (f facts) attachedTo(node string) Link {
	subject := attachmentSubject(node)
	a := f.attachment(node)
	switch {
	case a == nil && f.node(node) == nil:
		return link(subject, Problem, volume.ReasonNodeGone, "there is no node "+node+" to attach volume "+f.Volume.Name+" to", "user")
	case a != nil && a.DeletionTimestamp != nil:
		return f.leaving(a)
	case a != nil && a.Status.Attached:
		return link(subject, OK, volume.ReasonAttached, "attached to node "+node, "")
	}
	if l, held := f.heldElsewhere(node); held {
		return l
	}
	s := f.source()
	if l, ok := f.unregistered(subject, s.driver, node); ok {
		return l
	}
	if l, ok := f.uncalled(subject, s); ok {
		return l
	}
	return f.attaching(subject, s, node, a)
}

// attaching tells of a volume that nothing keeps from being attached but its
// driver, or the node's limit; a is nil when that has not begun.
func (f facts) attaching(subject string, s source, node string, a *storagev1.VolumeAttachment) Link {
	if a == nil {
		if l, full := f.full(subject, s, node); full {
			return l
		}
		return link(subject, Waiting, volume.ReasonAttaching, "volume "+f.Volume.Name+" has not been asked to attach to node "+node+" yet", "attachdetach")
	}
	if a.Status.AttachError == nil {
		return link(subject, Waiting, volume.ReasonAttaching, s.String()+" is attaching volume "+f.Volume.Name+" to node "+node, s.next())
	}
	m := a.Status.AttachError.Message
	because := volume.Because{Message: m, Next: blame(m, s.next())}
	if n := f.controlPlane(); n != nil {
		if b, ok := f.broken(s, n.Name, m); ok {
			because = b
		}
	}
	return link(subject, Problem, volume.ReasonFailedAttach, "volume "+f.Volume.Name+" is not attached to node "+node+": "+because.Message, because.Next)
}

func (f facts) attachment(node string) *storagev1.VolumeAttachment {
	return first(f.attached(), func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == node })
}

// full tells of a node that has as many volumes of a driver as it takes.
func (f facts) full(subject string, s source, node string) (Link, bool) {
	limit := -1
	if n := found(f.view.CSINodes, node); n != nil {
		for _, d := range n.Spec.Drivers {
			if d.Name == s.driver && d.Allocatable != nil && d.Allocatable.Count != nil {
				limit = int(*d.Allocatable.Count)
			}
		}
	}
	count := 0
	for _, a := range f.Attachments {
		if a.Spec.Attacher == s.driver && a.Spec.NodeName == node {
			count++
		}
	}
	return link(subject, Problem, volume.ReasonAttachLimit, fmt.Sprintf(
		"node %s has as many volumes of %s as it takes (%d): volume %s is attached when another one is not used there any more",
		node, s, limit, f.Volume.Name), "user"), limit >= 0 && count >= limit
}

// heldElsewhere tells of a volume that only one node may have while another
// one has it.
func (f facts) heldElsewhere(node string) (Link, bool) {
	if !f.oneNode() {
		return Link{}, false
	}
	other := first(f.attached(), func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName != node })
	if other == nil {
		return f.usedElsewhere(node)
	}
	message := fmt.Sprintf("only one node may have volume %s, and node %s has it", f.Volume.Name, other.Spec.NodeName)
	for _, p := range f.users() {
		if p.Spec.NodeName == other.Spec.NodeName {
			return f.heldBy(attachmentSubject(node), p, message+" for pod "+p.Name), true
		}
	}
	l := f.leaving(other)
	return link(attachmentSubject(node), l.State, volume.ReasonMultiAttach, message+" still: "+l.Because.Message, l.Because.Next), true
}

// usedElsewhere tells of a volume that its attachdetach does not attach, because
// another node says that it uses it, without an attachment. A node alone is not
// believed; nor is that event when the node says so no longer.
func (f facts) usedElsewhere(node string) (Link, bool) {
	for _, p := range f.told() {
		if p.Spec.NodeName != node {
			continue
		}
		e := f.warning(p, volume.ReasonFailedAttach)
		if e == nil || !strings.Contains(e.Message, fmt.Sprintf("%q", f.Volume.Name)) {
			continue
		}
		if other, named := strings.CutPrefix(e.Annotations[volume.AnnNext], "node "); named && f.inUse(other) {
			return link(attachmentSubject(node), Waiting, volume.ReasonMultiAttach, e.Message, "node "+other), true
		}
	}
	return Link{}, false
}

// heldBy tells of a Pod that has the volume elsewhere, and, if it cannot give it
// back, why.
func (f facts) heldBy(subject string, p *corev1.Pod, message string) Link {
	if l := f.mounted(p); l.State != OK && (p.DeletionTimestamp != nil || l.Because.Reason == volume.ReasonNodeGone) {
		return link(subject, l.State, volume.ReasonMultiAttach, message+": "+l.Because.Message, l.Because.Next)
	}
	return link(subject, Waiting, volume.ReasonMultiAttach, message, "pod "+p.Name)
}

func (f facts) oneNode() bool {
	for _, m := range f.Volume.Spec.AccessModes {
		if m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany {
			return false
		}
	}
	return true
}

// leaving tells of an attachment that is, or ought to be, on its way out.
func (f facts) leaving(a *storagev1.VolumeAttachment) Link {
	node, s := a.Spec.NodeName, f.source()
	subject := attachmentSubject(node)
	switch {
	case a.Status.DetachError != nil:
		m := a.Status.DetachError.Message
		return link(subject, Problem, volume.ReasonFailedDetach, "volume "+f.Volume.Name+" is not detached from node "+node+": "+m, blame(m, s.next()))
	case a.DeletionTimestamp != nil:
		if l, ok := f.uncalled(subject, s); ok {
			return l
		}
		return link(subject, Waiting, volume.ReasonDetaching, s.String()+" is detaching volume "+f.Volume.Name+" from node "+node, s.next())
	case f.inUse(node):
		if l, ok := f.failed(subject, a, volume.ReasonFailedUnmount, "node "+node); ok {
			return l
		}
		if l, down := f.nodeDown(node); down {
			return link(subject, Problem, volume.ReasonStillMounted, "volume "+f.Volume.Name+" is still mounted as far as is known, and "+l.Because.Message+
				"; if that host is off for good, taint the Node with "+corev1.TaintNodeOutOfService, l.Because.Next)
		}
		return link(subject, Waiting, volume.ReasonStillMounted, "no Pod on node "+node+" uses volume "+f.Volume.Name+", but the node still has it mounted", "node "+node)
	}
	return link(subject, Waiting, volume.ReasonStillAttached, "no Pod on node "+node+" uses volume "+f.Volume.Name+" any more", "attachdetach")
}

// alone tells of an attachment whose volume is not known.
func (k known) alone(a *storagev1.VolumeAttachment) Link {
	subject, node, driver := "volumeattachment/"+a.Name, a.Spec.NodeName, a.Spec.Attacher
	switch {
	case a.Status.DetachError != nil:
		return link(subject, Problem, volume.ReasonFailedDetach, of(a)+" is not detached from node "+node+": "+a.Status.DetachError.Message, blame(a.Status.DetachError.Message, driver))
	case a.DeletionTimestamp != nil:
		if l, ok := k.uncalled(subject, source{driver: driver}); ok {
			return l
		}
		return link(subject, Waiting, volume.ReasonDetaching, "driver "+driver+" is detaching "+of(a)+" from node "+node, driver)
	case a.Status.Attached:
		return link(subject, OK, volume.ReasonAttached, "attached to node "+node, "")
	case a.Status.AttachError != nil:
		return link(subject, Problem, volume.ReasonFailedAttach, of(a)+" is not attached to node "+node+": "+a.Status.AttachError.Message, blame(a.Status.AttachError.Message, driver))
	}
	return link(subject, Waiting, volume.ReasonAttaching, "driver "+driver+" is attaching "+of(a)+" to node "+node, driver)
}

// of names what an attachment attaches.
func of(a *storagev1.VolumeAttachment) string {
	if v := a.Spec.Source.PersistentVolumeName; v != nil {
		return "volume " + *v
	}
	return "a volume"
}

func (f facts) inUse(node string) bool {
	csi := f.Volume.Spec.CSI
	n := f.node(node)
	return n != nil && slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(volume.UniqueName(csi.Driver, csi.VolumeHandle)))
}

func (k known) node(name string) *corev1.Node { return found(k.view.Nodes, name) }
