package attach

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// Wish is a volume that a Pod of the node uses.
type Wish struct {
	Volume *corev1.PersistentVolume
	Pod    *corev1.Pod
	// Needless says that the driver needs no attaching (attachRequired=false,
	// S1-089).
	Needless bool
	// Elsewhere are the attachments of the volume to other nodes, and Holder
	// the Pod that uses it there, if one is known.
	Elsewhere []*storagev1.VolumeAttachment
	Holder    string
}

// NodeFacts is everything that a decision about one node looks at.
type NodeFacts struct {
	Name string
	// Node is nil when the Node object is gone: nothing on it can be in use.
	Node   *corev1.Node
	Wishes []Wish
	// Attachments are those to this node, and Volumes the objects that they
	// name, by name; one that is missing is gone.
	Attachments []*storagev1.VolumeAttachment
	Volumes     map[string]*corev1.PersistentVolume
	// Going names attachments whose deletion was asked for, though they do not
	// show it yet.
	Going map[string]bool
	// Overdue names attachments that have waited to be detached for longer
	// than a healthy node needs.
	Overdue map[string]bool
	// Limits is how many volumes of a driver the node takes; a driver that is
	// missing has no limit.
	Limits map[string]int
}

// Notice is what a Pod is told about one of its volumes.
type Notice struct {
	Pod    *corev1.Pod
	Volume string
	// Warn says that the Pod cannot go on.
	Warn    bool
	Because volume.Because
}

// Event is what the Pod is told: a warning goes under the reason that
// Kubernetes uses for every volume that is not attached.
func (n Notice) Event() volume.Because {
	if n.Warn {
		n.Because.Reason = volume.ReasonFailedAttach
	}
	return n.Because
}

// Detachment is an attachment that nobody wants any more.
type Detachment struct {
	Attachment *storagev1.VolumeAttachment
	// Unique is the volume's name in the node's status; "" when unknown.
	Unique string
	// Force says that it is detached even while the node says that it uses
	// it, because the node is dead.
	Force   bool
	Because volume.Because
}

// NodePlan is what is done for one node, in this order: the node's status
// first, because the node must not begin to mount what is about to go.
type NodePlan struct {
	// Attached is what node.status.volumesAttached should be; Publish says
	// that it is not yet.
	Attached []corev1.AttachedVolume
	Publish  bool
	Detach   []Detachment
	Attach   []Attachable
	Notices  []Notice
	Because  volume.Because
}

// Attachable is an attachment to be made.
type Attachable struct {
	Attachment *storagev1.VolumeAttachment
	Volume     *corev1.PersistentVolume
}

// NameOf returns the name of the attachment of a volume to a node. It follows
// from its arguments so that a repeated attach finds it.
func NameOf(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// Node decides about all volumes of one node.
func Node(f NodeFacts) NodePlan {
	p := NodePlan{Because: volume.Because{Reason: volume.ReasonAttached, Message: "node " + f.Name + " has the volumes that it needs"}}
	wanted := map[string][]Wish{}
	if f.Node != nil {
		for _, w := range f.Wishes {
			unique := volume.UniqueName(w.Volume.Spec.CSI.Driver, w.Volume.Spec.CSI.VolumeHandle)
			wanted[unique] = append(wanted[unique], w)
			p.wish(f, w)
		}
	}
	for _, a := range f.Attachments {
		wishes := wanted[uniqueOf(f, a)]
		if len(wishes) > 0 && a.DeletionTimestamp == nil && !f.Going[a.Name] {
			p.keep(f, a, wishes)
		} else {
			p.drop(f, a)
		}
	}
	slices.SortFunc(p.Attached, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	p.Attached = slices.Compact(p.Attached)
	p.Publish = f.Node != nil && !slices.Equal(p.Attached, f.Node.Status.VolumesAttached)
	p.explain(f)
	return p
}

// explain says what matters most about the node.
func (p *NodePlan) explain(f NodeFacts) {
	warning := slices.IndexFunc(p.Notices, func(n Notice) bool { return n.Warn })
	pending := slices.IndexFunc(f.Wishes, func(w Wish) bool { return !w.Needless && !p.has(w.Volume) })
	switch {
	case f.Node == nil:
		p.Because = volume.Because{Reason: volume.ReasonNodeGone, Message: "node " + f.Name + " is gone"}
	case warning >= 0:
		p.Because = p.Notices[warning].Because
	case pending >= 0:
		v := f.Wishes[pending].Volume
		p.Because = volume.Because{
			Reason: volume.ReasonAttaching, Next: v.Spec.CSI.Driver, Message: "volume " + v.Name + " is being attached to node " + f.Name,
		}
	case len(p.Detach) > 0:
		p.Because = p.Detach[0].Because
	}
}

// has says whether the node is told that it may mount a volume.
func (p *NodePlan) has(v *corev1.PersistentVolume) bool {
	unique := corev1.UniqueVolumeName(volume.UniqueName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle))
	return slices.ContainsFunc(p.Attached, func(a corev1.AttachedVolume) bool { return a.Name == unique })
}

// wish attaches what is not attached, unless another node or the driver's
// limit stands in the way.
func (p *NodePlan) wish(f NodeFacts, w Wish) {
	v := w.Volume
	driver := v.Spec.CSI.Driver
	unique := volume.UniqueName(driver, v.Spec.CSI.VolumeHandle)
	// An attachment may have any name (S1-052).
	there := slices.ContainsFunc(f.Attachments, func(a *storagev1.VolumeAttachment) bool { return uniqueOf(f, a) == unique })
	name := NameOf(driver, v.Spec.CSI.VolumeHandle, f.Name)
	planned := slices.ContainsFunc(p.Attach, func(a Attachable) bool { return a.Attachment.Name == name })
	switch {
	case w.Needless || there || planned:
	case len(w.Elsewhere) > 0 && !Shareable(v):
		p.warn(w, multiAttach(w))
	case p.full(f, driver):
		p.warn(w, volume.Because{
			Reason: volume.ReasonFailedAttach, Next: "user",
			Message: fmt.Sprintf("volume %s cannot be attached: node %s has as many volumes of driver %s as it takes (%d)", v.Name, f.Name, driver, f.Limits[driver]),
		})
	default:
		p.Attach = append(p.Attach, Attachable{Volume: v, Attachment: &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: driver, NodeName: f.Name,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		}})
	}
}

func (p *NodePlan) warn(w Wish, why volume.Because) {
	p.Notices = append(p.Notices, Notice{Pod: w.Pod, Volume: w.Volume.Name, Warn: true, Because: why})
}

// full says whether the node takes no further volume of a driver.
func (p *NodePlan) full(f NodeFacts, driver string) bool {
	limit, limited := f.Limits[driver]
	if !limited {
		return false
	}
	count := 0
	for _, a := range f.Attachments {
		if a.Spec.Attacher == driver {
			count++
		}
	}
	for _, a := range p.Attach {
		if a.Attachment.Spec.Attacher == driver {
			count++
		}
	}
	return count >= limit
}

func multiAttach(w Wish) volume.Because {
	node := w.Elsewhere[0].Spec.NodeName
	b := volume.Because{Reason: volume.ReasonMultiAttach, Next: "node " + node}
	b.Message = fmt.Sprintf("Multi-Attach error for volume %q: it can be on one node at a time and is still attached to node %s", w.Volume.Name, node)
	if w.Holder != "" {
		b.Message += ", used there by pod " + w.Holder
		b.Next = "pod " + w.Holder
	}
	return b
}

// Shareable says whether a volume may be attached to several nodes.
func Shareable(v *corev1.PersistentVolume) bool {
	return len(v.Spec.AccessModes) == 0 || slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany) || slices.Contains(v.Spec.AccessModes, corev1.ReadOnlyMany)
}

// keep publishes an attachment to the node as soon as the driver is done, and
// tells the Pods.
func (p *NodePlan) keep(f NodeFacts, a *storagev1.VolumeAttachment, wishes []Wish) {
	unique := corev1.UniqueVolumeName(uniqueOf(f, a))
	if a.Status.Attached {
		p.Attached = append(p.Attached, corev1.AttachedVolume{Name: unique})
		if slices.ContainsFunc(f.Node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == unique }) {
			return
		}
		for _, w := range wishes {
			p.Notices = append(p.Notices, Notice{Pod: w.Pod, Volume: w.Volume.Name, Because: volume.Because{
				Reason: volume.ReasonAttached, Message: "volume " + w.Volume.Name + " is attached to node " + f.Name, Next: "node " + f.Name,
			}})
		}
		return
	}
	if a.Status.AttachError == nil {
		return
	}
	for _, w := range wishes {
		p.warn(w, volume.Because{
			Reason: volume.ReasonFailedAttach, Next: a.Spec.Attacher,
			Message: fmt.Sprintf("volume %s is not attached to node %s: %s", w.Volume.Name, f.Name, a.Status.AttachError.Message),
		})
	}
}

// drop takes an attachment away that nobody wants, when the node does not use
// it any more, or is dead.
func (p *NodePlan) drop(f NodeFacts, a *storagev1.VolumeAttachment) {
	if a.DeletionTimestamp != nil {
		return // the attacher's turn
	}
	d := Detachment{Attachment: a, Unique: uniqueOf(f, a)}
	switch {
	case f.Node == nil:
		d.Because = volume.Because{Reason: volume.ReasonNodeGone, Message: "node " + f.Name + " is gone, its volumes are detached", Next: a.Spec.Attacher}
	case outOfService(f.Node) || !nodelife.Ready(f.Node) && f.Overdue[a.Name]:
		d.Force = true
		d.Because = volume.Because{Reason: volume.ReasonDetaching, Message: "node " + f.Name + " is out of service, volume " + sourceOf(a) + " is detached by force", Next: a.Spec.Attacher}
	case InUse(f.Node, d.Unique):
		d.Because = volume.Because{Reason: volume.ReasonStillMounted, Message: "volume " + sourceOf(a) + " is still mounted on node " + f.Name, Next: "node " + f.Name}
	default:
		d.Because = volume.Because{Reason: volume.ReasonDetaching, Message: "volume " + sourceOf(a) + " is not used on node " + f.Name + " any more", Next: a.Spec.Attacher}
	}
	p.Detach = append(p.Detach, d)
}

// InUse says whether a node says that it uses a volume. A node whose volume
// is not known by name is taken at its most careful word.
func InUse(n *corev1.Node, unique string) bool {
	if n == nil {
		return false
	}
	if unique == "" {
		return len(n.Status.VolumesInUse) > 0
	}
	return slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(unique))
}

// uniqueOf returns the volume's name in the node's status, from the volume
// object or from what the attacher recorded before the object went.
func uniqueOf(f NodeFacts, a *storagev1.VolumeAttachment) string {
	if v := f.Volumes[sourceOf(a)]; v != nil && v.Spec.CSI != nil {
		return volume.UniqueName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)
	}
	if r, err := RecordOf(a); err == nil && r != nil {
		return volume.UniqueName(a.Spec.Attacher, r.Handle)
	}
	return ""
}

func sourceOf(a *storagev1.VolumeAttachment) string {
	if a.Spec.Source.PersistentVolumeName == nil {
		return ""
	}
	return *a.Spec.Source.PersistentVolumeName
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
