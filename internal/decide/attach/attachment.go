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
// then.
type Record struct {
	Handle string                  `json:"handle"`
	Secret *corev1.SecretReference `json:"secret,omitempty"`
}

// RecordOf returns the record of an attachment; nil when it has none.
func RecordOf(a *storagev1.VolumeAttachment) (*Record, error) {
	text, ok := a.Annotations[volume.AnnDetach]
	if !ok {
		return nil, nil
	}
	r := &Record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", volume.AnnDetach, err)
	}
	return r, nil
}

// Step is what is done next about one attachment.
type Step int

// Steps of an attachment's life.
const (
	// Nothing: it is as it should be, or somebody else's turn.
	Nothing Step = iota
	// Attach records what detach needs, calls ControllerPublishVolume and
	// writes the status.
	Attach
	// Detach calls ControllerUnpublishVolume and lets the attachment go.
	Detach
	// Release lets an attachment go for which the driver was never called.
	Release
)

// Facts is everything that a decision about one attachment looks at.
type Facts struct {
	Attachment *storagev1.VolumeAttachment
	// Volume is the object that it names; nil when it is gone.
	Volume *corev1.PersistentVolume
	// NodeID is the driver's name of the node, from its CSINode; "" when there
	// is none.
	NodeID string
	// Ours says that the driver is reached by this process.
	Ours bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step    Step
	Record  Record
	NodeID  string
	Because volume.Because
}

// Attachment decides about one attachment.
func Attachment(f Facts) Plan {
	a := f.Attachment
	say := func(s Step, r volume.Reason, next, message string) Plan {
		return Plan{Step: s, Because: volume.Because{Reason: r, Message: message, Next: next}}
	}
	finalizer := slices.Contains(a.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
	switch {
	case !f.Ours:
		return say(Nothing, volume.ReasonDriverMissing, a.Spec.Attacher, "driver "+a.Spec.Attacher+" has not registered")
	case a.DeletionTimestamp != nil && !finalizer:
		return say(Nothing, volume.ReasonTerminating, "", "attachment "+a.Name+" is going")
	case a.DeletionTimestamp != nil:
		return detach(f, say)
	case a.Status.Attached:
		return say(Nothing, volume.ReasonAttached, "", "volume "+sourceOf(a)+" is attached to node "+a.Spec.NodeName)
	case f.Volume == nil || f.Volume.Spec.CSI == nil:
		return say(Nothing, volume.ReasonVolumeMissing, "user", "volume "+sourceOf(a)+" does not exist or is no CSI volume")
	case f.Volume.DeletionTimestamp != nil:
		return say(Nothing, volume.ReasonTerminating, "provisioner", "volume "+f.Volume.Name+" is being deleted and is not attached any more")
	case f.NodeID == "":
		return say(Nothing, volume.ReasonDriverMissing, "node "+a.Spec.NodeName, "driver "+a.Spec.Attacher+" has not registered on node "+a.Spec.NodeName)
	}
	p := say(Attach, volume.ReasonAttaching, a.Spec.Attacher, "volume "+f.Volume.Name+" is being attached to node "+a.Spec.NodeName)
	p.Record = Record{Handle: f.Volume.Spec.CSI.VolumeHandle, Secret: f.Volume.Spec.CSI.ControllerPublishSecretRef}
	p.NodeID = f.NodeID
	return p
}

func detach(f Facts, say func(Step, volume.Reason, string, string) Plan) Plan {
	a := f.Attachment
	p := say(Detach, volume.ReasonDetaching, a.Spec.Attacher, "volume "+sourceOf(a)+" is being detached from node "+a.Spec.NodeName)
	p.NodeID = a.Annotations[volume.AnnNodeID]
	if p.NodeID == "" {
		p.NodeID = f.NodeID
	}
	record, err := RecordOf(a)
	switch {
	case err == nil && record != nil:
		p.Record = *record
	case f.Volume != nil && f.Volume.Spec.CSI != nil:
		p.Record = Record{Handle: f.Volume.Spec.CSI.VolumeHandle, Secret: f.Volume.Spec.CSI.ControllerPublishSecretRef}
	default:
		// The finalizer and the record are written together: without a record
		// the driver was never called by us.
		return say(Release, volume.ReasonDetaching, "", "attachment "+a.Name+" was never attached")
	}
	return p
}

// Failed explains a call of the driver that did not work.
func Failed(a *storagev1.VolumeAttachment, detaching bool, cause string) volume.Because {
	b := volume.Because{Reason: volume.ReasonFailedAttach, Next: a.Spec.Attacher}
	deed := "attach to"
	if detaching {
		b.Reason, deed = volume.ReasonFailedDetach, "detach from"
	}
	b.Message = "volume " + sourceOf(a) + " did not " + deed + " node " + a.Spec.NodeName + ": " + cause
	return b
}

// Recorded returns the attachment with the finalizer and all that its detach
// needs on it, and whether that is a change (S1-053).
func Recorded(a *storagev1.VolumeAttachment, p Plan) (*storagev1.VolumeAttachment, bool, error) {
	text, err := json.Marshal(p.Record)
	if err != nil {
		return nil, false, fmt.Errorf("write record of attachment: %w", err)
	}
	f := volume.AttacherFinalizer(a.Spec.Attacher)
	if slices.Contains(a.Finalizers, f) && a.Annotations[volume.AnnNodeID] == p.NodeID && a.Annotations[volume.AnnDetach] == string(text) {
		return a, false, nil
	}
	c := a.DeepCopy()
	if !slices.Contains(c.Finalizers, f) {
		c.Finalizers = append(c.Finalizers, f)
	}
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[volume.AnnNodeID], c.Annotations[volume.AnnDetach] = p.NodeID, string(text)
	return c, true, nil
}

// Released returns the attachment without our finalizer.
func Released(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	c := a.DeepCopy()
	c.Finalizers = slices.DeleteFunc(c.Finalizers, func(f string) bool { return f == volume.AttacherFinalizer(a.Spec.Attacher) })
	return c
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
		return c, volume.Because{Reason: volume.ReasonAttaching, Message: "volume " + v.Name + " is kept while it is attached"}
	case !attached && has && v.DeletionTimestamp != nil:
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(s string) bool { return s == f })
		return c, volume.Because{Reason: volume.ReasonTerminating, Message: "volume " + v.Name + " is not attached any more"}
	}
	return nil, volume.Because{Reason: volume.ReasonNothingToDo, Message: "volume " + v.Name + " is kept as it should be"}
}
