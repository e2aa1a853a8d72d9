package attach

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// Record is everything that a detach needs. It is written to the attachment before the attach, because
// the volume's object, the Secret's name and the Node may be gone by then (S1-121).
type Record struct {
	Handle string                  `json:"handle"`
	Secret *corev1.SecretReference `json:"secret,omitempty"`
}

// RecordOf returns the record of an attachment, nil if it has none. An invalid record is an error.
func RecordOf(a *storagev1.VolumeAttachment) (*Record, error) {
	text, ok := a.Annotations[volume.AnnDetach]
	if !ok {
		return nil, nil
	}
	r := &Record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", volume.AnnDetach, err)
	}
	if r.Handle == "" {
		return nil, fmt.Errorf("annotation %s does not name a volume", volume.AnnDetach)
	}
	return r, nil
}

// Step is the next step of one attachment.
type Step int

// Steps of an attachment's life.
const (
	// Nothing: the state is right, or another program acts next.
	Nothing Step = iota
	// Mark writes that it is attached: the driver needs no call (S1-046).
	Mark
	// Attach records what detach needs, calls ControllerPublishVolume and writes the status.
	Attach
	// Detach calls ControllerUnpublishVolume and lets the attachment go.
	Detach
	// Release releases an attachment for which the driver was never called.
	Release
	// Refuse writes why it cannot be attached or detached. It need not be repeated: the attachment is reconciled when the
	// missing object appears.
	Refuse
)

// Facts is everything on which the decision about one attachment depends.
type Facts struct {
	Attachment *storagev1.VolumeAttachment
	// Volume is the object that it names, or SourceOf it; nil if it is gone.
	Volume *corev1.PersistentVolume
	// NodeID is the driver's id of the node; "" if it is unknown.
	NodeID string
	// Reachable says that the driver is reached by this process; NoControllerPublish that it
	// neither attaches nor detaches.
	Reachable, NoControllerPublish bool
	// Again means that the driver does not know that it is attached.
	Again bool
	// Lost means that the volume and the node were lost together, and that this process serves the volumes that belong to
	// no node.
	Lost bool
	// Mounted says that the attachment was deleted without a detach, and that its node, which is ready, uses the volume.
	Mounted bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step   Step
	Record Record
	NodeID string
	// Left is another name of the node under which the driver may have been called before, and must be called to detach
	// first; "" means none.
	Left    string
	Because volume.Because
}

// maxAttributes is how many bytes of attributes a volume may have. The CSI
// specification allows 4096; some drivers use more.
const maxAttributes = 64 << 10

// SourceOf returns the volume of an attachment: the inline spec of the attachment itself, otherwise the object; nil if
// there is neither.
func SourceOf(a *storagev1.VolumeAttachment, object *corev1.PersistentVolume) *corev1.PersistentVolume {
	if a.Spec.Source.InlineVolumeSpec != nil {
		return &corev1.PersistentVolume{Spec: *a.Spec.Source.InlineVolumeSpec}
	}
	return object
}

// ServedBy returns the node whose controllers attach and detach a volume of a node-local driver: the one on which it
// was created, or, if the volume has no object any more, the attachment's; "" if it was created on no particular node.
func ServedBy(f Facts) string {
	if f.Volume == nil {
		return f.Attachment.Spec.NodeName
	}
	return provision.MadeOn(f.Volume)
}

// IsLost says whether an attachment and its volume were given up with the node that serves both.
func IsLost(f Facts) bool {
	return ServedBy(f) == f.Attachment.Spec.NodeName && volume.IsLost(f.Attachment.Annotations, f.Attachment.Spec.NodeName)
}

// NodeID returns the driver's id of an attachment's node: the one in the CSINode, otherwise the one recorded in the
// attachment, otherwise the one in the Node's annotation (S1-050); "" if there is none.
func NodeID(c *storagev1.CSINode, a *storagev1.VolumeAttachment, n *corev1.Node) string {
	if c != nil {
		for _, d := range c.Spec.Drivers {
			if d.Name == a.Spec.Attacher {
				return d.NodeID
			}
		}
	}
	if id := a.Annotations[volume.AnnNodeID]; id != "" {
		return id
	}
	var ids map[string]string
	if n == nil || json.Unmarshal([]byte(n.Annotations[volume.AnnLegacyNodeID]), &ids) != nil {
		return ""
	}
	return ids[a.Spec.Attacher]
}

func plan(s Step, r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Step: s, Because: volume.Say(r, next, message)}
}

// Attachment decides about one attachment.
func Attachment(f Facts) Plan {
	a := f.Attachment
	switch {
	case f.Lost && a.DeletionTimestamp != nil && HasFinalizer(a):
		return plan(Release, volume.ReasonNodeGone, volume.Actor{},
			Name(a)+" was lost with node "+a.Spec.NodeName+", and no driver is asked")
	case !f.Reachable:
		return plan(Nothing, volume.ReasonDriverMissing, volume.Driver(a.Spec.Attacher),
			"driver "+a.Spec.Attacher+" has not registered")
	case a.DeletionTimestamp != nil:
		return detach(f)
	case isSettled(f):
		return plan(Nothing, volume.ReasonAttached, volume.Actor{}, Name(a)+" is attached to node "+a.Spec.NodeName)
	case f.NoControllerPublish:
		return plan(Mark, volume.ReasonAttaching, volume.Actor{}, Name(a)+" does not need to be attached by "+
			"driver "+a.Spec.Attacher)
	}
	return attach(f)
}

// isSettled says whether a volume is attached, and nothing says that it is not.
func isSettled(f Facts) bool {
	a := f.Attachment
	return a.Status.Attached && !f.Again && (f.NoControllerPublish || HasFinalizer(a) || !isRecorded(a))
}

// terminating returns the reason why a detached attachment that is being deleted still exists.
func terminating(a *storagev1.VolumeAttachment) Plan {
	if len(a.Finalizers) == 0 {
		return plan(Nothing, volume.ReasonTerminating, volume.APIServer(),
			"attachment "+a.Name+" is being deleted, and nothing holds it")
	}
	return plan(Nothing, volume.ReasonTerminating, volume.OwnerOf(a.Finalizers[0]),
		Name(a)+" is detached from node "+a.Spec.NodeName+
			"; its attachment is being deleted, and finalizer "+a.Finalizers[0]+" belongs to another program")
}

func attach(f Facts) Plan {
	a, v := f.Attachment, f.Volume
	name := Name(a)
	switch {
	case v == nil || v.Spec.CSI == nil:
		return plan(Refuse, volume.ReasonVolumeMissing, volume.User(), name+" does not exist or is not a CSI volume")
	case v.Spec.CSI.Driver != a.Spec.Attacher:
		return plan(Refuse, volume.ReasonNotMine, volume.User(),
			name+" belongs to driver "+v.Spec.CSI.Driver+", not "+a.Spec.Attacher)
	case v.DeletionTimestamp != nil:
		// S3-010, S3-024.
		return plan(Refuse, volume.ReasonTerminating, volume.Controller("provisioner"),
			name+" is being deleted and is no longer attached")
	case isOfOther(a, v):
		// An attachment that still has to be detached keeps it, until it is gone.
		return plan(Refuse, volume.ReasonNotMine, volume.Controller("attachdetach"),
			name+" was recreated for another volume of driver "+a.Spec.Attacher+" since it was attached")
	case size(v.Spec.CSI.VolumeAttributes) > maxAttributes:
		return plan(Refuse, volume.ReasonFailedAttach, volume.User(),
			fmt.Sprintf("%s has %d bytes of attributes, more than %d", name, size(v.Spec.CSI.VolumeAttributes), maxAttributes))
	case f.NodeID == "":
		p := plan(Refuse, volume.ReasonDriverMissing, volume.Driver(a.Spec.Attacher),
			"driver "+a.Spec.Attacher+" has not registered on node "+a.Spec.NodeName)
		p.Because.Node = a.Spec.NodeName
		return p
	}
	p := plan(Attach, volume.ReasonAttaching, volume.Driver(a.Spec.Attacher),
		name+" is being attached to node "+a.Spec.NodeName)
	p.Record = recordFrom(v)
	p.NodeID = f.NodeID
	if recorded := a.Annotations[volume.AnnNodeID]; HasFinalizer(a) && recorded != p.NodeID {
		p.Left = recorded
	}
	return p
}

// isRecorded says whether the driver may have been called. The finalizer is written together with the record; if the
// finalizer is missing, someone has removed it, and the attachment could be deleted without a detach.
func isRecorded(a *storagev1.VolumeAttachment) bool {
	r, err := RecordOf(a)
	return err != nil || r != nil
}

// isOfOther says whether an attachment is for another volume than the object's, by its record or by its name.
func isOfOther(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) bool {
	r, _ := RecordOf(a)
	return r != nil && r.Handle != v.Spec.CSI.VolumeHandle || namesOther(a, v)
}

// size returns the number of bytes of a map of attributes.
func size(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

func recordFrom(v *corev1.PersistentVolume) Record {
	return Record{Handle: v.Spec.CSI.VolumeHandle, Secret: v.Spec.CSI.ControllerPublishSecretRef}
}

// recordByVolume returns the record that an attachment of another program would have; nil if the volume does not say.
func recordByVolume(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) *Record {
	r := Record{Handle: migratedHandle(a, v)}
	if v != nil && v.Spec.CSI != nil && v.Spec.CSI.Driver == a.Spec.Attacher && !namesOther(a, v) {
		r = recordFrom(v)
	}
	if r.Handle == "" {
		return nil
	}
	return &r
}

func detach(f Facts) Plan {
	a := f.Attachment
	switch {
	case !HasFinalizer(a):
		return terminating(a)
	case f.Mounted:
		// Users remove finalizers to get rid of an attachment, not to take the volume from a running Pod.
		return plan(Nothing, volume.ReasonStillMounted, volume.NodeAgent(a.Spec.NodeName),
			"attachment "+a.Name+" was deleted without a detach, and "+Name(a)+" is still mounted on node "+a.Spec.NodeName)
	}
	p := plan(Detach, volume.ReasonDetaching, volume.Driver(a.Spec.Attacher),
		Name(a)+" is being detached from node "+a.Spec.NodeName)
	if f.NoControllerPublish {
		return p
	}
	p.NodeID = a.Annotations[volume.AnnNodeID]
	recorded := p.NodeID != ""
	if !recorded {
		p.NodeID = f.NodeID
	}
	record, err := RecordOf(a)
	if record == nil {
		record = recordByVolume(a, f.Volume)
	}
	switch {
	case record != nil:
		p.Record = *record
	case err == nil && !recorded && !a.Status.Attached:
		// The finalizer is written together with the node's id, in today's sidecars too: without an id the driver was never
		// called (S1-053).
		return plan(Release, volume.ReasonDetaching, volume.Actor{}, "attachment "+a.Name+" was never attached")
	default:
		return plan(Refuse, volume.ReasonFailedDetach, volume.User(),
			Name(a)+unsaid(f)+", and attachment "+a.Name+" does not say what to detach")
	}
	if p.NodeID == "" {
		// To a driver no node means all nodes.
		return plan(Refuse, volume.ReasonFailedDetach, volume.User(), "driver "+a.Spec.Attacher+" is not known on node "+
			a.Spec.NodeName+" and attachment "+a.Name+" does not say from where to detach")
	}
	return p
}

// unsaid says why the volume of an attachment does not tell what to detach.
func unsaid(f Facts) string {
	switch v, driver := f.Volume, f.Attachment.Spec.Attacher; {
	case v == nil:
		return " is gone"
	case v.Spec.CSI != nil && v.Spec.CSI.Driver == driver:
		return " was recreated for another volume"
	default:
		return " does not belong to driver " + driver
	}
}

// Failed is the reason of a driver's call that failed.
func Failed(a *storagev1.VolumeAttachment, detaching bool, answer volume.Answer) volume.Because {
	reason, state := volume.ReasonFailedAttach, "attached to"
	switch {
	case detaching:
		reason, state = volume.ReasonFailedDetach, "detached from"
	case a.Status.Attached:
		reason = volume.ReasonAttachmentVanished
	}
	return answer.Because(reason, volume.Driver(a.Spec.Attacher),
		Name(a)+" is not "+state+" node "+a.Spec.NodeName+" by driver "+a.Spec.Attacher+": "+answer.Failure())
}

// Name returns the name of an attachment's volume for messages.
func Name(a *storagev1.VolumeAttachment) string {
	if name := sourceOf(a); name != "" {
		return "volume " + name
	}
	return "a volume"
}

// Recorded returns the attachment with the finalizer and everything that its detach needs, and whether
// that is a change (S1-053).
func Recorded(a *storagev1.VolumeAttachment, p Plan) (*storagev1.VolumeAttachment, bool) {
	// Strings always marshal.
	text, _ := json.Marshal(p.Record)
	f := volume.AttacherFinalizer(a.Spec.Attacher)
	if slices.Contains(a.Finalizers, f) && a.Annotations[volume.AnnNodeID] == p.NodeID &&
		a.Annotations[volume.AnnDetach] == string(text) {
		return a, false
	}
	c := a.DeepCopy()
	if !slices.Contains(c.Finalizers, f) {
		c.Finalizers = append(c.Finalizers, f)
	}
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnNodeID, p.NodeID)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnDetach, string(text))
	return c, true
}

// HasFinalizer says whether the attachment has our finalizer, so that it cannot be deleted without a detach.
func HasFinalizer(a *storagev1.VolumeAttachment) bool {
	return slices.Contains(a.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
}

// WithoutFinalizer returns the attachment without our finalizer.
func WithoutFinalizer(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	c := a.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
	return c
}

// DeletedWithoutDetach says whether an attachment was deleted although it had our finalizer and was never marked as
// deleted. An API server does that if the finalizer is added at the same moment (kubernetes/kubernetes#77988), and
// users remove finalizers by hand.
func DeletedWithoutDetach(gone *storagev1.VolumeAttachment) bool {
	return gone.DeletionTimestamp == nil && gone.Spec.Source.PersistentVolumeName != nil &&
		(HasFinalizer(gone) || isRecorded(gone))
}

// LostFinalizer says whether an attachment has just lost our finalizer although it is not being detached.
func LostFinalizer(before, after *storagev1.VolumeAttachment) bool {
	return HasFinalizer(before) && !HasFinalizer(after) && after.DeletionTimestamp == nil
}

// Volume decides whether a PersistentVolume has the finalizer of its driver's attacher: it has while it may be
// attached, and loses it when it is being deleted and no attachment names it (S1-054). nil means no change.
func Volume(v *corev1.PersistentVolume, attached bool) (*corev1.PersistentVolume, volume.Because) {
	driver := v.Annotations[volume.AnnMigratedTo]
	if v.Spec.CSI != nil {
		driver = v.Spec.CSI.Driver
	}
	if driver == "" {
		return nil, volume.Because{Reason: volume.ReasonNotMine, Message: "volume " + v.Name + " is not a CSI volume"}
	}
	f := volume.AttacherFinalizer(driver)
	has := slices.Contains(v.Finalizers, f)
	c := v.DeepCopy()
	switch {
	case attached && !has && v.DeletionTimestamp == nil:
		c.Finalizers = append(c.Finalizers, f)
		return c, volume.Because{
			Reason: volume.ReasonAttaching, Message: "volume " + v.Name + " is kept while it is attached",
		}
	case !attached && has && v.DeletionTimestamp != nil && !slices.Contains(v.Finalizers, volume.FinalizerProvisioner):
		// The provisioner removes this finalizer together with its own.
		c.Finalizers = volume.Without(c.Finalizers, f)
		return c, volume.Say(volume.ReasonTerminating, volume.Controller("attacher"),
			"volume "+v.Name+" is no longer attached")
	}
	return nil, finalizerStays(v, attached, has)
}

// finalizerStays returns the reason why a volume keeps the attacher's finalizer.
func finalizerStays(v *corev1.PersistentVolume, attached, has bool) volume.Because {
	switch {
	case !has || v.DeletionTimestamp == nil:
		return volume.Because{Reason: volume.ReasonNothingToDo, Message: "volume " + v.Name + " is kept as it should be"}
	case attached:
		return volume.Say(volume.ReasonStillAttached, volume.Controller("attachdetach"),
			"volume "+v.Name+" is still attached")
	}
	return volume.Say(volume.ReasonDeleting, volume.Controller("provisioner"),
		"volume "+v.Name+" is kept by its provisioner")
}

// isOfEarlierMachine says whether a volume is attached under another id of the node than the driver has now, as after a
// machine was replaced, and the node's agent reports for all Pods that it does not use the volume for that reason. If a
// Pod may have it, the machine is the same, and the volume stays until the Pod ends.
func (d *nodeDecision) isOfEarlierMachine(a *storagev1.VolumeAttachment, desired []DesiredVolume) bool {
	if !underOtherID(a, d.Registered[a.Spec.Attacher]) || !a.Status.Attached || !HasFinalizer(a) {
		return false
	}
	mayHave := func(w DesiredVolume) bool { return w.Pod.DeletionTimestamp != nil || !IsKeptOff(w.Pod) }
	return d.Node != nil && nodelife.Ready(d.Node) && d.ours(a) && !slices.ContainsFunc(desired, mayHave)
}

// detachFromEarlier detaches a volume from an earlier machine of the node. It does not wait when the node reports the
// volume in use, because volumesInUse also lists volumes that Pods are still waiting for.
func (d *nodeDecision) detachFromEarlier(a *storagev1.VolumeAttachment, unique string) {
	d.More = true
	d.Detach = append(d.Detach, Detachment{Attachment: a, Unique: unique, Force: true, Because: volume.Sayf(
		volume.ReasonDetaching, volume.Driver(a.Spec.Attacher),
		"%s is attached to %s, and driver %s calls node %s %s now: it is detached from there, and attached again", Name(a),
		a.Annotations[volume.AnnNodeID], a.Spec.Attacher, d.Name, d.Registered[a.Spec.Attacher])})
}

// IsKeptOff says whether a Pod's node agent reports that it does not use the Pod's only volume, because that is
// attached under another id. If the Pod has several volumes, one of them may be mounted.
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
