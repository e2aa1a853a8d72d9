package why

import (
	"fmt"
	"slices"

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
		out = append(out, f.attached(node))
	}
	for _, a := range f.Attachments {
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

func (f facts) attached(node string) Link {
	subject, driver := attachmentSubject(node), f.driverName()
	a := f.attachment(node)
	if a != nil && a.DeletionTimestamp != nil {
		return f.leaving(a)
	}
	if a != nil && a.Status.Attached {
		return link(subject, OK, volume.ReasonAttached, "attached to node "+node, "")
	}
	if l, held := f.heldElsewhere(node); held {
		return l
	}
	if !f.registered(driver, node) {
		return link(subject, Problem, volume.ReasonDriverMissing,
			fmt.Sprintf("driver %s is not registered on node %s", driver, node), driver)
	}
	switch {
	case a == nil:
		return link(subject, Waiting, volume.ReasonAttaching, "the volume has not been asked to attach to node "+node+" yet", "attachdetach")
	case a.Status.AttachError != nil:
		return link(subject, Problem, volume.ReasonFailedAttach, a.Status.AttachError.Message, blame(a.Status.AttachError.Message, driver))
	}
	return link(subject, Waiting, volume.ReasonAttaching, "driver "+driver+" is attaching the volume to node "+node, driver)
}

func (f facts) attachment(node string) *storagev1.VolumeAttachment {
	return first(f.Attachments, func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == node })
}

// heldElsewhere tells of a volume that only one node may have while another
// one has it.
func (f facts) heldElsewhere(node string) (Link, bool) {
	if !f.oneNode() {
		return Link{}, false
	}
	for _, a := range f.Attachments {
		other := a.Spec.NodeName
		if other == node {
			continue
		}
		message, actor := fmt.Sprintf("only one node may have the volume, and node %s has it", other), "attachdetach"
		for _, p := range f.users() {
			if p.Spec.NodeName == other {
				message, actor = message+" for pod "+p.Name, "pod "+p.Name
				break
			}
		}
		return link(attachmentSubject(node), Waiting, volume.ReasonMultiAttach, message, actor), true
	}
	return Link{}, false
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
	node, driver := a.Spec.NodeName, f.driverName()
	subject := attachmentSubject(node)
	switch {
	case a.Status.DetachError != nil:
		return link(subject, Problem, volume.ReasonFailedDetach, a.Status.DetachError.Message, blame(a.Status.DetachError.Message, driver))
	case a.DeletionTimestamp != nil:
		return link(subject, Waiting, volume.ReasonDetaching, "driver "+driver+" is detaching the volume from node "+node, driver)
	case f.inUse(node):
		return link(subject, Waiting, volume.ReasonStillMounted, "no Pod on node "+node+" uses the volume, but the node still has it mounted", "node "+node)
	}
	return link(subject, Waiting, volume.ReasonStillAttached, "no Pod on node "+node+" uses the volume any more", "attachdetach")
}

// alone tells of an attachment whose volume is not known.
func alone(a *storagev1.VolumeAttachment) Link {
	subject, node, driver := "volumeattachment/"+a.Name, a.Spec.NodeName, a.Spec.Attacher
	switch {
	case a.Status.DetachError != nil:
		return link(subject, Problem, volume.ReasonFailedDetach, a.Status.DetachError.Message, blame(a.Status.DetachError.Message, driver))
	case a.DeletionTimestamp != nil:
		return link(subject, Waiting, volume.ReasonDetaching, "driver "+driver+" is detaching a volume from node "+node, driver)
	case a.Status.Attached:
		return link(subject, OK, volume.ReasonAttached, "attached to node "+node, "")
	case a.Status.AttachError != nil:
		return link(subject, Problem, volume.ReasonFailedAttach, a.Status.AttachError.Message, blame(a.Status.AttachError.Message, driver))
	}
	return link(subject, Waiting, volume.ReasonAttaching, "driver "+driver+" is attaching a volume to node "+node, driver)
}

func (f facts) inUse(node string) bool {
	csi := f.Volume.Spec.CSI
	n := f.node(node)
	return n != nil && slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(volume.UniqueName(csi.Driver, csi.VolumeHandle)))
}

func (f facts) node(name string) *corev1.Node {
	return first(f.Nodes, func(n *corev1.Node) bool { return n.Name == name })
}
