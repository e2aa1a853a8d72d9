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

	"volplane.dev/volplane/internal/volume"
)

// Wish is a volume that a Pod of the node uses.
type Wish struct {
	Volume *corev1.PersistentVolume
	Pod    *corev1.Pod
	// Needless says that the driver needs no attaching (attachRequired=false).
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
	// Overdue names attachments that have waited to be detached for longer
	// than a healthy node needs.
	Overdue map[string]bool
}

// Blocked is a Pod whose volume cannot be attached yet.
type Blocked struct {
	Pod     *corev1.Pod
	Because volume.Because
}

// Event is what the Pod is told, under the reason that Kubernetes uses for
// every volume that is not attached.
func (b Blocked) Event() volume.Because {
	b.Because.Reason = volume.ReasonFailedAttach
	return b.Because
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
	Attach   []*storagev1.VolumeAttachment
	Blocked  []Blocked
	Because  volume.Because
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
	wanted := map[string]bool{}
	if f.Node != nil {
		for _, w := range f.Wishes {
			wanted[w.Volume.Name] = true
			p.wish(f, w)
		}
	}
	for _, a := range f.Attachments {
		name := sourceOf(a)
		if wanted[name] && a.DeletionTimestamp == nil {
			p.keep(f, a)
		} else {
			p.drop(f, a)
		}
	}
	slices.SortFunc(p.Attached, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	p.Publish = f.Node != nil && !slices.Equal(p.Attached, f.Node.Status.VolumesAttached)
	switch {
	case len(p.Blocked) > 0:
		p.Because = p.Blocked[0].Because
	case len(p.Attach) > 0:
		p.Because.Reason = volume.ReasonAttaching
	case len(p.Detach) > 0:
		p.Because = p.Detach[0].Because
	}
	return p
}

// wish attaches what is not attached, unless another node stands in the way.
func (p *NodePlan) wish(f NodeFacts, w Wish) {
	v := w.Volume
	name := NameOf(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, f.Name)
	there := slices.ContainsFunc(f.Attachments, func(a *storagev1.VolumeAttachment) bool { return a.Name == name })
	planned := slices.ContainsFunc(p.Attach, func(a *storagev1.VolumeAttachment) bool { return a.Name == name })
	switch {
	case w.Needless || there || planned:
	case len(w.Elsewhere) > 0 && !Shareable(v):
		p.Blocked = append(p.Blocked, Blocked{w.Pod, multiAttach(w)})
	default:
		p.Attach = append(p.Attach, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: v.Spec.CSI.Driver, NodeName: f.Name,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		})
	}
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

// keep publishes an attachment to the node as soon as the driver is done.
func (p *NodePlan) keep(f NodeFacts, a *storagev1.VolumeAttachment) {
	if a.Status.Attached {
		p.Attached = append(p.Attached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(uniqueOf(f, a))})
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
	case outOfService(f.Node) || !ready(f.Node) && f.Overdue[a.Name]:
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

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func outOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
