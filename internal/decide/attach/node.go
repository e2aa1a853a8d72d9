package attach

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// MaxUnmount is how long a node that is not ready may take to unmount a volume that no Pod wants. After
// that its volumes are detached by force, or the wait is reported; Kubernetes uses the same time.
const MaxUnmount = 6 * time.Minute

// DesiredVolume is a volume that a Pod on the node wants.
type DesiredVolume struct {
	Volume *corev1.PersistentVolume
	Pod    *corev1.Pod
	// Needless says that the driver needs no attaching (attachRequired=false, S1-089).
	Needless bool
	// Elsewhere are the attachments of the volume to other nodes, and Holder the Pod that uses it there, if one is known.
	Elsewhere []*storagev1.VolumeAttachment
	Holder    string
	// UsedOn is another node that has the volume mounted, though it is not attached there as far as the API knows; ""
	// means none. Holder is then its Pod.
	UsedOn string
}

// NodeFacts is everything on which the decision about one node depends.
type NodeFacts struct {
	Name string
	// Node is nil when the Node object is gone: nothing on it can be in use.
	Node    *corev1.Node
	Desired []DesiredVolume
	// Attachments are those to this node, and Volumes the objects that they name, by name; a missing one is gone, or not
	// known yet.
	Attachments []*storagev1.VolumeAttachment
	Volumes     map[string]*corev1.PersistentVolume
	// Deleting names attachments whose deletion was requested, although they do not show it yet.
	Deleting map[string]bool
	// Overdue names attachments that have waited to be detached for longer than a healthy node needs.
	Overdue map[string]bool
	// DisableForceDetachOnTimeout says that an attachment that is overdue is not detached by force for that alone.
	DisableForceDetachOnTimeout bool
	// Creating are the drivers of attachments to this node whose creation has
	// begun and that are not among Attachments yet, by name.
	Creating map[string]string
	// Limits is the driver's attach limit of the node; a missing driver has no limit.
	Limits map[string]int
	// NodeIDs are the node's ids at the drivers for which new attachments are created with their record, because their
	// attacher is near and then need not write the record itself.
	NodeIDs map[string]string
	// Registered are the names of the node at all its drivers.
	Registered map[string]string
}

// Notice is a message to a Pod about one of its volumes.
type Notice struct {
	Pod    *corev1.Pod
	Volume string
	// Warn means that the Pod is blocked.
	Warn    bool
	Because volume.Because
}

// Event returns the event of a notice. A warning has the reason that Kubernetes uses for every volume
// that is not attached.
func (n Notice) Event() volume.Because {
	if n.Warn {
		n.Because.Reason = volume.ReasonFailedAttach
	}
	return n.Because
}

// Detachment is an attachment that no Pod wants any more.
type Detachment struct {
	Attachment *storagev1.VolumeAttachment
	// Unique is the volume's name in the node's status; "" when unknown.
	Unique string
	// Force means that it is detached even while the node reports it in use, because the node is dead; Stuck that it would
	// be, but may not.
	Force, Stuck bool
	// Unknown is the name of the attachment's PersistentVolume if it is neither cached nor recorded. It must be read from
	// the API first: if it exists, the decision is repeated.
	Unknown string
	Because volume.Because
}

// NodePlan has the actions for one node, in this order. The node's status comes first, because the node
// must not start to mount a volume that will be detached.
type NodePlan struct {
	// Attached is what node.status.volumesAttached should be; Publish means that it has to be written.
	Attached []corev1.AttachedVolume
	Publish  bool
	// More means that volumes are on their way to the node, and volumesAttached will soon change again.
	More    bool
	Detach  []Detachment
	Attach  []Attachable
	Notices []Notice
	// Kept are attachments that no Pod wants and that are not deleted, because another program created them.
	Kept []*storagev1.VolumeAttachment
	// HasAttachment are the volumes that the attachments are for.
	HasAttachment map[string]bool
	Because       volume.Because
}

// Attachable is an attachment to create.
type Attachable struct {
	Attachment *storagev1.VolumeAttachment
	Volume     *corev1.PersistentVolume
}

// NameOf returns the name of the attachment of a volume to a node. It depends only on its arguments, so
// that a repeated attach finds it.
func NameOf(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// nodeDecision is the state of one decision about a node. Its steps use indexes, because a node may
// have a thousand volumes.
type nodeDecision struct {
	NodeFacts
	NodePlan
	// uniques are the volumes' names of Attachments.
	uniques []string
	// known is the node's volumesAttached, and ready what it may become.
	known, ready map[corev1.UniqueVolumeName]bool
	// planned are the attachments in Attach and Creating, count all of a driver.
	planned map[string]bool
	count   map[string]int
}

// Node decides about all volumes of one node.
func Node(f NodeFacts) NodePlan {
	d := &nodeDecision{
		NodeFacts: f, NodePlan: NodePlan{HasAttachment: map[string]bool{}}, planned: map[string]bool{},
		count: map[string]int{},
		known: map[corev1.UniqueVolumeName]bool{}, ready: map[corev1.UniqueVolumeName]bool{},
	}
	d.index()
	wanted := map[string][]DesiredVolume{}
	for _, w := range f.Desired {
		unique := volume.UniqueName(w.Volume.Spec.CSI.Driver, w.Volume.Spec.CSI.VolumeHandle)
		wanted[unique] = append(wanted[unique], w)
		d.attachWanted(w, unique)
	}
	for i, a := range f.Attachments {
		d.keepOrDetach(a, d.uniques[i], wanted[d.uniques[i]])
	}
	slices.SortFunc(d.Attached, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	d.Attached = slices.Compact(d.Attached)
	d.Publish = f.Node != nil && !slices.Equal(d.Attached, f.Node.Status.VolumesAttached)
	d.More = d.More || len(d.planned) > 0
	d.explain()
	return d.NodePlan
}

// keepOrDetach decides about an attachment, given the desired uses of its volume.
func (d *nodeDecision) keepOrDetach(a *storagev1.VolumeAttachment, unique string, desired []DesiredVolume) {
	wanted := len(desired) > 0 && a.DeletionTimestamp == nil
	switch {
	case wanted && d.isOfEarlierMachine(a, desired):
		d.detachFromEarlier(a, unique)
	case wanted && d.isOfGone(a, unique, desired):
		d.makeWay(a, unique, desired[0])
	case wanted && !d.Deleting[a.Name]:
		d.keepWanted(a, unique, desired)
	case d.ours(a):
		d.detachUnwanted(a, unique)
	case a.Spec.Source.PersistentVolumeName != nil:
		d.Kept = append(d.Kept, a)
	}
}

// index builds the indexes of attachments and volumes.
func (d *nodeDecision) index() {
	for _, a := range d.Attachments {
		unique := uniqueOf(d.NodeFacts, a)
		d.uniques = append(d.uniques, unique)
		d.HasAttachment[unique] = true
		d.count[a.Spec.Attacher]++
	}
	for name, driver := range d.Creating {
		d.planned[name] = true
		d.count[driver]++
	}
	if d.Node == nil {
		return
	}
	for _, v := range d.Node.Status.VolumesAttached {
		d.known[v.Name] = true
	}
}

// explain sets the most important reason of the plan.
func (d *nodeDecision) explain() {
	warning := slices.IndexFunc(d.Notices, func(n Notice) bool { return n.Warn })
	pending := slices.IndexFunc(d.Desired, func(w DesiredVolume) bool {
		return !w.Needless &&
			!d.ready[corev1.UniqueVolumeName(volume.UniqueName(w.Volume.Spec.CSI.Driver, w.Volume.Spec.CSI.VolumeHandle))]
	})
	switch {
	case d.Node == nil && len(d.Desired) > 0:
		p := d.Desired[0].Pod
		d.Because = volume.Say(volume.ReasonNodeGone, volume.PodActor(p.Name),
			"node "+d.Name+" is gone, and pod "+p.Name+" may still use its volumes there")
	case d.Node == nil:
		d.Because = volume.Because{Reason: volume.ReasonNodeGone, Message: "node " + d.Name + " is gone"}
	case warning >= 0:
		d.Because = d.Notices[warning].Because
	case pending >= 0:
		v := d.Desired[pending].Volume
		d.Because = volume.Say(volume.ReasonAttaching, volume.Driver(v.Spec.CSI.Driver),
			"volume "+v.Name+" is being attached to node "+d.Name)
	case len(d.Detach) > 0:
		d.Because = d.Detach[0].Because
	default:
		d.Because = volume.Because{
			Reason: volume.ReasonAttached, Message: "node " + d.Name + " has the volumes that it needs",
		}
	}
}

// attachWanted attaches a wanted volume, unless another node has it or the driver's limit is reached.
func (d *nodeDecision) attachWanted(w DesiredVolume, unique string) {
	v := w.Volume
	driver := v.Spec.CSI.Driver
	// An attachment may have any name (S1-052).
	if w.Needless || d.HasAttachment[unique] || d.Node == nil {
		return
	}
	name := NameOf(driver, v.Spec.CSI.VolumeHandle, d.Name)
	limit, limited := d.Limits[driver]
	switch {
	case d.planned[name]:
	case (len(w.Elsewhere) > 0 || w.UsedOn != "") && !Shareable(v):
		d.warn(w, multiAttach(w))
	case limited && d.count[driver] >= limit:
		d.warn(w, volume.Sayf(volume.ReasonAttachLimit, volume.User(), "volume %s cannot be attached: node %s has reached "+
			"its limit of volumes of driver %s (%d)", v.Name, d.Name, driver, limit))
	default:
		d.planned[name] = true
		d.count[driver]++
		d.Attach = append(d.Attach, Attachable{Volume: v, Attachment: d.newAttachment(name, v)})
	}
}

// newAttachment returns a new attachment. If the attacher is in the same process, it contains everything that its
// detach needs, so that the attacher need not write it before it calls the driver (S1-053). If a Secret is needed, the
// attacher writes that after it has read the Secret: without the Secret the driver could not detach.
func (d *nodeDecision) newAttachment(name string, v *corev1.PersistentVolume) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: v.Spec.CSI.Driver, NodeName: d.Name,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
		},
	}
	id := d.NodeIDs[v.Spec.CSI.Driver]
	if id == "" || v.DeletionTimestamp != nil || v.Spec.CSI.ControllerPublishSecretRef != nil {
		return a
	}
	recorded, _ := Recorded(a, Plan{Record: recordFrom(v), NodeID: id})
	return recorded
}

func (d *nodeDecision) warn(w DesiredVolume, why volume.Because) {
	d.Notices = append(d.Notices, Notice{Pod: w.Pod, Volume: w.Volume.Name, Warn: true, Because: why})
}

func multiAttach(w DesiredVolume) volume.Because {
	if len(w.Elsewhere) == 0 {
		b := volume.Because{
			Reason: volume.ReasonMultiAttach, Next: volume.NodeAgent(w.UsedOn),
			Message: fmt.Sprintf("Multi-Attach error for volume %q: it can be on one node at a time, and node %s says that it "+
				"still uses it", w.Volume.Name, w.UsedOn),
			Cause: volume.Cause{Object: "pv/" + w.Volume.Name},
		}
		if w.Holder != "" {
			b.Message, b.Next = b.Message+", for pod "+w.Holder, volume.PodActor(w.Holder)
		}
		return b
	}
	node := w.Elsewhere[0].Spec.NodeName
	b := volume.Because{
		Reason: volume.ReasonMultiAttach, Next: volume.NodeAgent(node), Cause: volume.Cause{Object: "pv/" + w.Volume.Name},
	}
	b.Message = fmt.Sprintf("Multi-Attach error for volume %q: it can be on one node at a time and is still attached "+
		"to node %s", w.Volume.Name, node)
	switch {
	case w.Holder != "":
		b.Message += ", used there by pod " + w.Holder
		b.Next = volume.PodActor(w.Holder)
	case !ownName(w.Elsewhere[0], w.Volume):
		b.Message += ", by attachment " + w.Elsewhere[0].Name + " that volplane did not create"
		b.Next = volume.User()
	}
	return b
}

// Shareable says whether a volume may be attached to several nodes.
func Shareable(v *corev1.PersistentVolume) bool {
	return len(v.Spec.AccessModes) == 0 || slices.Contains(v.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(v.Spec.AccessModes, corev1.ReadOnlyMany)
}

// keepWanted publishes a wanted attachment in the node's status as soon as it is attached, and warns
// the Pods otherwise. A node whose object was deleted may still have its volumes mounted while it has
// Pods; its attachments only stay.
func (d *nodeDecision) keepWanted(a *storagev1.VolumeAttachment, name string, desired []DesiredVolume) {
	unique := corev1.UniqueVolumeName(name)
	switch {
	case d.Node == nil:
	case a.Status.Attached:
		d.Attached = append(d.Attached, corev1.AttachedVolume{Name: unique})
		if d.known[unique] || d.ready[unique] {
			break
		}
		for _, w := range desired {
			d.Notices = append(d.Notices, Notice{Pod: w.Pod, Volume: w.Volume.Name, Because: volume.Say(
				volume.ReasonAttached, volume.NodeAgent(d.Name),
				"volume "+w.Volume.Name+" is attached to node "+d.Name)})
		}
	case a.Status.AttachError != nil:
		for _, w := range desired {
			d.warn(w, Failed(a, false, AnswerOf(a.Status.AttachError)))
		}
	default:
		d.More = true
	}
	d.ready[unique] = d.ready[unique] || a.Status.Attached
}

// isOfGone says whether an attachment will never be attached, because the object that it names is gone or going, while
// Pods want the same volume by other objects: its name, which depends on the handle only, must become free for them.
func (d *nodeDecision) isOfGone(a *storagev1.VolumeAttachment, unique string, desired []DesiredVolume) bool {
	v := d.Volumes[sourceOf(a)]
	needs := func(w DesiredVolume) bool { return w.Volume.Name == sourceOf(a) || cluster.Mounted(w.Pod) }
	return (v == nil || v.DeletionTimestamp != nil) && !a.Status.Attached && !d.known[corev1.UniqueVolumeName(unique)] &&
		d.Node != nil && d.ours(a) && !slices.ContainsFunc(desired, needs)
}

// makeWay deletes an attachment for the one that a Pod needs. It does not wait when the node reports the volume in use:
// no Pod has it, and volumesInUse also lists volumes that Pods are still waiting for.
func (d *nodeDecision) makeWay(a *storagev1.VolumeAttachment, unique string, w DesiredVolume) {
	d.More = true
	d.Detach = append(d.Detach, Detachment{Attachment: a, Unique: unique, Force: true, Because: volume.Say(
		volume.ReasonDetaching, volume.Driver(a.Spec.Attacher), Name(a)+" was deleted before it was attached to node "+
			d.Name+": its attachment makes way for that of volume "+w.Volume.Name+", which has the same handle")})
}

// ours says whether an attachment was created by this controller or Kubernetes' own. Attachments with other names are
// deleted by their creators.
func (d *nodeDecision) ours(a *storagev1.VolumeAttachment) bool {
	return ownName(a, d.Volumes[sourceOf(a)])
}

// ownName says whether an attachment has the name that follows from its volume, or may have it if the
// volume is unknown, which is proved before it is detached (Detachment.Unknown).
func ownName(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) bool {
	if a.Spec.Source.InlineVolumeSpec != nil {
		return false
	}
	if driver, handle := About(a, v); handle != "" {
		return a.Name == NameOf(driver, handle, a.Spec.NodeName)
	}
	return isDerived(a.Name) && !namesOther(a, v)
}

// isDerived says whether a name looks as if NameOf had returned it.
func isDerived(name string) bool {
	return len(name) == len(NameOf("", "", "")) && strings.HasPrefix(name, "csi-")
}

// namesOther says whether the name of an attachment proves that it is not for the volume of an object: the object may
// have been created again for another volume. A name of another form proves nothing (S1-052).
func namesOther(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) bool {
	return a.Spec.Source.InlineVolumeSpec == nil && v != nil && v.Spec.CSI != nil && isDerived(a.Name) &&
		a.Name != NameOf(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, a.Spec.NodeName)
}

// About returns the driver and the handle of an attachment's volume; "" if they are unknown. v is the
// object that the attachment names, nil if it is gone. The object may have been created again for
// another volume, so the record is preferred if the attachment's name proves it.
func About(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) (driver, handle string) {
	v = SourceOf(a, v)
	known := v != nil && v.Spec.CSI != nil && !namesOther(a, v)
	r, _ := RecordOf(a)
	switch {
	case r != nil && (!known || a.Name == NameOf(a.Spec.Attacher, r.Handle, a.Spec.NodeName)):
		return a.Spec.Attacher, r.Handle
	case known:
		return v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle
	}
	return "", ""
}

// detachUnwanted detaches a volume that no Pod wants, if the node no longer uses it, or is dead.
func (d *nodeDecision) detachUnwanted(a *storagev1.VolumeAttachment, unique string) {
	if a.DeletionTimestamp != nil {
		return // the attacher's turn
	}
	out, node := Detachment{Attachment: a, Unique: unique}, d.Node
	if unique == "" && d.Volumes[sourceOf(a)] == nil {
		out.Unknown = sourceOf(a)
	}
	late := node != nil && !nodelife.Ready(node) && d.Overdue[a.Name]
	switch {
	case node == nil:
		out.Because = volume.Say(volume.ReasonNodeGone, volume.Driver(a.Spec.Attacher),
			"node "+d.Name+" is gone, its volumes are detached")
	case nodelife.OutOfService(node) || late && !d.DisableForceDetachOnTimeout:
		out.Force = true
		out.Because = volume.Say(volume.ReasonDetaching, volume.Driver(a.Spec.Attacher),
			"node "+d.Name+" is out of service, "+Name(a)+" is detached by force")
	case InUse(node, unique):
		out.Stuck, out.Because = late, d.stillMounted(a, late)
	default:
		out.Because = volume.Say(volume.ReasonDetaching, volume.Driver(a.Spec.Attacher),
			Name(a)+" is not used on node "+d.Name+" any more")
	}
	d.Detach = append(d.Detach, out)
}

// stillMounted returns the reason of an unwanted attachment that its node uses. late means that the node is not ready
// and its time is over.
func (d *nodeDecision) stillMounted(a *storagev1.VolumeAttachment, late bool) volume.Because {
	b := volume.Say(volume.ReasonStillMounted, volume.NodeAgent(d.Name), Name(a)+" is still mounted on node "+d.Name)
	switch {
	case late:
		b.Next = volume.User()
		b.Message += ", which is not ready, and --disable-force-detach-on-timeout keeps it from being detached by force: " +
			"it waits until the node is back, or is deleted, or has the taint " + corev1.TaintNodeOutOfService
	case !nodelife.Ready(d.Node):
		b.Next = volume.Administrator(d.Name)
		b.Message += " as far as is known, and the node is not ready; if that host is off for good, taint the Node with " +
			corev1.TaintNodeOutOfService
	}
	return b
}

// MountedOn says whether a node that is trusted uses the volume of an attachment.
func MountedOn(n *corev1.Node, a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) bool {
	return n != nil && Trusted(n) && InUse(n, uniqueName(a, v))
}

// InUse says whether a node's volumesInUse has a volume. If the volume's name is unknown, any entry counts.
func InUse(n *corev1.Node, unique string) bool {
	if n == nil {
		return false
	}
	if unique == "" {
		return len(n.Status.VolumesInUse) > 0
	}
	return slices.Contains(n.Status.VolumesInUse, corev1.UniqueVolumeName(unique))
}

// uniqueOf returns the name that an attachment's volume has in the node's status.
func uniqueOf(f NodeFacts, a *storagev1.VolumeAttachment) string {
	return uniqueName(a, f.Volumes[sourceOf(a)])
}

func uniqueName(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) string {
	driver, handle := About(a, v)
	if handle == "" {
		return ""
	}
	return volume.UniqueName(driver, handle)
}

// sourceOf returns the name of an attachment's volume for messages: the object's name, otherwise the handle.
func sourceOf(a *storagev1.VolumeAttachment) string {
	switch s := a.Spec.Source; {
	case s.PersistentVolumeName != nil:
		return *s.PersistentVolumeName
	case s.InlineVolumeSpec != nil && s.InlineVolumeSpec.CSI != nil:
		return s.InlineVolumeSpec.CSI.VolumeHandle
	}
	return ""
}

// Trusted says whether a node's volumesInUse is believed: it exists, is ready, and is in service.
func Trusted(n *corev1.Node) bool { return n != nil && nodelife.Ready(n) && !nodelife.OutOfService(n) }
