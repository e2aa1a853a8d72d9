package attach

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// Record is everything that a detach needs, written to the attachment before
// the attach: the volume object, the Secret's name and the Node may be gone by
// then (S1-121).
type Record struct {
	Handle string                  `json:"handle"`
	Secret *corev1.SecretReference `json:"secret,omitempty"`
}

// RecordOf returns the record of an attachment; nil when it has none, or none
// that makes sense, which is an error.
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
		return nil, fmt.Errorf("annotation %s names no volume", volume.AnnDetach)
	}
	return r, nil
}

// Step is what is done next about one attachment.
type Step int

// Steps of an attachment's life.
const (
	// Nothing: it is as it should be, or somebody else's turn.
	Nothing Step = iota
	// Mark writes that it is attached: the driver has nothing to do (S1-046).
	Mark
	// Attach records what detach needs, calls ControllerPublishVolume and
	// writes the status.
	Attach
	// Detach calls ControllerUnpublishVolume and lets the attachment go.
	Detach
	// Release lets an attachment go for which the driver was never called.
	Release
	// Refuse writes why it cannot be attached or detached. It need not be
	// repeated: what is missing wakes the attachment when it comes.
	Refuse
)

// Facts is everything that a decision about one attachment looks at.
type Facts struct {
	Attachment *storagev1.VolumeAttachment
	// Volume is the object that it names, or SourceOf it; nil when it is gone.
	Volume *corev1.PersistentVolume
	// NodeID is the driver's name of the node; "" when it is not known.
	NodeID string
	// Ours says that the driver is reached by this process; Trivial that it
	// neither attaches nor detaches.
	Ours, Trivial bool
	// Again says that the driver does not know that it is attached.
	Again bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step   Step
	Record Record
	NodeID string
	// Left is another name of the node under which the driver may have been
	// called before, and must be called to detach first; "" is none.
	Left    string
	Because volume.Because
}

// maxAttributes is how many bytes of attributes a volume may have. The CSI
// specification allows 4096; some drivers use more.
const maxAttributes = 64 << 10

// SourceOf returns the volume that an attachment is about: what the attachment
// itself says, or else the object; nil when there is neither.
func SourceOf(a *storagev1.VolumeAttachment, object *corev1.PersistentVolume) *corev1.PersistentVolume {
	if a.Spec.Source.InlineVolumeSpec != nil {
		return &corev1.PersistentVolume{Spec: *a.Spec.Source.InlineVolumeSpec}
	}
	return object
}

// NodeID returns a driver's name of an attachment's node: what the driver
// registered there, else what the attachment says, else what an old node wrote
// on its Node object (S1-050); "" when none of them knows the driver.
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

func say(s Step, r volume.Reason, next, message string) Plan {
	return Plan{Step: s, Because: volume.Because{Reason: r, Message: message, Next: next}}
}

// Attachment decides about one attachment.
func Attachment(f Facts) Plan {
	a := f.Attachment
	switch {
	case !f.Ours:
		return say(Nothing, volume.ReasonDriverMissing, a.Spec.Attacher, "driver "+a.Spec.Attacher+" has not registered")
	case a.DeletionTimestamp != nil && !Kept(a):
		return terminating(a)
	case a.DeletionTimestamp != nil:
		return detach(f)
	case a.Status.Attached && !f.Again && (f.Trivial || Kept(a) || !isRecorded(a)):
		return say(Nothing, volume.ReasonAttached, "", Name(a)+" is attached to node "+a.Spec.NodeName)
	case f.Trivial:
		return say(Mark, volume.ReasonAttaching, "", Name(a)+" needs no attaching by driver "+a.Spec.Attacher)
	}
	return attach(f)
}

// terminating says what an attachment waits for that is detached and being deleted.
func terminating(a *storagev1.VolumeAttachment) Plan {
	if len(a.Finalizers) == 0 {
		return say(Nothing, volume.ReasonTerminating, "api server",
			"attachment "+a.Name+" is being deleted, and nothing holds it")
	}
	return say(Nothing, volume.ReasonTerminating, "owner of "+a.Finalizers[0],
		Name(a)+" is detached from node "+a.Spec.NodeName+
			"; its attachment is being deleted, and finalizer "+a.Finalizers[0]+" is held by somebody else")
}

func attach(f Facts) Plan {
	a, v := f.Attachment, f.Volume
	name := Name(a)
	switch {
	case v == nil || v.Spec.CSI == nil:
		return say(Refuse, volume.ReasonVolumeMissing, "user", name+" does not exist or is no CSI volume")
	case v.Spec.CSI.Driver != a.Spec.Attacher:
		return say(Refuse, volume.ReasonNotMine, "user", name+" is of driver "+v.Spec.CSI.Driver+", not "+a.Spec.Attacher)
	case v.DeletionTimestamp != nil:
		// S3-010, S3-024.
		return say(Refuse, volume.ReasonTerminating, "provisioner", name+" is being deleted and is not attached any more")
	case recordsOther(a, v):
		// It keeps what is to be detached, until it is gone.
		return say(Refuse, volume.ReasonNotMine, "attachdetach",
			name+" was made again for another volume of driver "+a.Spec.Attacher+" since it was attached")
	case size(v.Spec.CSI.VolumeAttributes) > maxAttributes:
		return say(Refuse, volume.ReasonFailedAttach, "user",
			fmt.Sprintf("%s has %d bytes of attributes, more than %d", name, size(v.Spec.CSI.VolumeAttributes), maxAttributes))
	case f.NodeID == "":
		return say(Refuse, volume.ReasonDriverMissing, a.Spec.Attacher,
			"driver "+a.Spec.Attacher+" has not registered on node "+a.Spec.NodeName)
	}
	p := say(Attach, volume.ReasonAttaching, a.Spec.Attacher, name+" is being attached to node "+a.Spec.NodeName)
	p.Record = recordFrom(v)
	p.NodeID = f.NodeID
	if recorded := a.Annotations[volume.AnnNodeID]; Kept(a) && recorded != p.NodeID {
		p.Left = recorded
	}
	return p
}

// isRecorded says whether the driver may have been called. The finalizer came
// with the record; without it somebody has taken it away by hand, and the
// attachment could go without a detach.
func isRecorded(a *storagev1.VolumeAttachment) bool {
	r, err := RecordOf(a)
	return err != nil || r != nil
}

// recordsOther says whether the driver may have been called for another volume
// than the one that the object is for.
func recordsOther(a *storagev1.VolumeAttachment, v *corev1.PersistentVolume) bool {
	r, _ := RecordOf(a)
	return r != nil && r.Handle != v.Spec.CSI.VolumeHandle
}

// size returns the bytes of a map of attributes.
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

func detach(f Facts) Plan {
	a := f.Attachment
	p := say(Detach, volume.ReasonDetaching, a.Spec.Attacher, Name(a)+" is being detached from node "+a.Spec.NodeName)
	if f.Trivial {
		return p
	}
	p.NodeID = a.Annotations[volume.AnnNodeID]
	recorded := p.NodeID != ""
	if !recorded {
		p.NodeID = f.NodeID
	}
	record, err := RecordOf(a)
	switch {
	case record != nil:
		p.Record = *record
	case f.Volume != nil && f.Volume.Spec.CSI != nil && f.Volume.Spec.CSI.Driver == a.Spec.Attacher:
		p.Record = recordFrom(f.Volume)
	case err == nil && !recorded && !a.Status.Attached:
		// The finalizer comes with the node's id, in today's sidecars too:
		// without one the driver was never called (S1-053).
		return say(Release, volume.ReasonDetaching, "", "attachment "+a.Name+" was never attached")
	default:
		return say(Refuse, volume.ReasonFailedDetach, "user",
			Name(a)+" is gone and attachment "+a.Name+" does not say what to detach")
	}
	if p.NodeID == "" {
		// To a driver no node means all nodes.
		return say(Refuse, volume.ReasonFailedDetach, "user", "driver "+a.Spec.Attacher+" is not known on node "+
			a.Spec.NodeName+" and attachment "+a.Name+" does not say from where to detach")
	}
	return p
}

// Failed explains a call of the driver that did not work.
func Failed(a *storagev1.VolumeAttachment, detaching bool, cause string) volume.Because {
	b := volume.Because{Reason: volume.ReasonFailedAttach, Next: volume.NextAfter(cause, a.Spec.Attacher)}
	state := "attached to"
	if detaching {
		b.Reason, state = volume.ReasonFailedDetach, "detached from"
	}
	b.Message = Name(a) + " is not " + state + " node " + a.Spec.NodeName + ": " + cause
	return b
}

// Name names what an attachment attaches, for people.
func Name(a *storagev1.VolumeAttachment) string {
	if name := sourceOf(a); name != "" {
		return "volume " + name
	}
	return "a volume"
}

// Recorded returns the attachment with the finalizer and all that its detach
// needs on it, and whether that is a change (S1-053).
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
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[volume.AnnNodeID], c.Annotations[volume.AnnDetach] = p.NodeID, string(text)
	return c, true
}

// Kept says whether the attachment has our finalizer: it cannot go without a
// detach.
func Kept(a *storagev1.VolumeAttachment) bool {
	return slices.Contains(a.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
}

// Released returns the attachment without our finalizer.
func Released(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	c := a.DeepCopy()
	c.Finalizers = slices.DeleteFunc(c.Finalizers,
		func(f string) bool { return f == volume.AttacherFinalizer(a.Spec.Attacher) })
	return c
}

// Lost says of an attachment that is gone whether it went without the detach
// that its finalizer promises: then it was never marked as going. An API server
// deletes an object although a finalizer was added, when both happen at once
// (kubernetes/kubernetes#77988), and people take finalizers away by hand.
func Lost(gone *storagev1.VolumeAttachment) bool {
	return gone.DeletionTimestamp == nil && gone.Spec.Source.PersistentVolumeName != nil &&
		(Kept(gone) || isRecorded(gone))
}

// Bared says whether an attachment has just lost our finalizer though nobody is
// detaching it.
func Bared(before, after *storagev1.VolumeAttachment) bool {
	return Kept(before) && !Kept(after) && after.DeletionTimestamp == nil
}

// Volume decides whether a volume object is kept by the finalizer of its
// driver's attacher: it is while it may be attached, and let go when it is
// being deleted and no attachment names it (S1-054). nil is no change.
func Volume(v *corev1.PersistentVolume, attached bool) (*corev1.PersistentVolume, volume.Because) {
	if v.Spec.CSI == nil {
		return nil, volume.Because{Reason: volume.ReasonNotMine, Message: "volume " + v.Name + " is no CSI volume"}
	}
	f := volume.AttacherFinalizer(v.Spec.CSI.Driver)
	has := slices.Contains(v.Finalizers, f)
	c := v.DeepCopy()
	switch {
	case attached && !has && v.DeletionTimestamp == nil:
		c.Finalizers = append(c.Finalizers, f)
		return c, volume.Because{
			Reason: volume.ReasonAttaching, Message: "volume " + v.Name + " is kept while it is attached",
		}
	case !attached && has && v.DeletionTimestamp != nil && !slices.Contains(v.Finalizers, volume.FinalizerProvisioner):
		// The provisioner takes this finalizer with its own.
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(s string) bool { return s == f })
		return c, volume.Because{
			Reason: volume.ReasonTerminating, Message: "volume " + v.Name + " is not attached any more", Next: "attacher",
		}
	}
	return nil, finalizerStays(v, attached, has)
}

// finalizerStays tells why the attacher's finalizer stays on a volume as it is.
func finalizerStays(v *corev1.PersistentVolume, attached, has bool) volume.Because {
	switch {
	case !has || v.DeletionTimestamp == nil:
		return volume.Because{Reason: volume.ReasonNothingToDo, Message: "volume " + v.Name + " is kept as it should be"}
	case attached:
		return volume.Because{
			Reason: volume.ReasonStillAttached, Message: "volume " + v.Name + " is still attached", Next: "attachdetach",
		}
	}
	return volume.Because{
		Reason: volume.ReasonDeleting, Message: "volume " + v.Name + " is kept by its provisioner", Next: "provisioner",
	}
}
