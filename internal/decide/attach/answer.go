package attach

import (
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Answer is how an attach or a detach ended, or the preparation of one.
type Answer struct {
	volume.Answer
	// NoSecret says why the driver was called to detach without the Secret that the record names; empty when it had it.
	NoSecret string
	// Published is the publish context that an attach has returned.
	Published map[string]string
}

// Result is what follows an answer.
type Result struct {
	// Status has the fields to be changed in the attachment's status; nil when it says all of it already.
	Status map[string]any
	// Warn says that the reason is new and becomes an event: a call that fails is repeated many times.
	Warn bool
	// Release says that the attacher's finalizer is removed: only a finished detach means detached (S1-064, S1-086).
	Release bool
	// Retry says that the call is repeated after a back-off.
	Retry   bool
	Because volume.Because
}

// After decides what follows the end of a step of an attachment that calls the driver, if it has anything to do. The
// finalizers stay whatever the outcome of a failed call is: only a detach that is done ends an attach.
func After(step Step, a *storagev1.VolumeAttachment, answer Answer, now metav1.Time) Result {
	switch {
	case answer.Outcome != volume.Done:
		return failed(a, answer, now)
	case step == Detach:
		done := say(Nothing, volume.ReasonDetaching, "attacher", Name(a)+" is detached from node "+a.Spec.NodeName)
		return Result{Release: true, Because: done.Because}
	}
	r := Result{Because: say(Nothing, volume.ReasonAttached, "", Name(a)+" is attached to node "+a.Spec.NodeName).Because}
	if s := a.Status; !s.Attached || s.AttachError != nil || !maps.Equal(s.AttachmentMetadata, answer.Published) {
		// S1-055 to S1-057.
		r.Status = map[string]any{"attached": true, "attachmentMetadata": answer.Published, "attachError": nil}
	}
	return r
}

// failed repeats the call and writes its error where people look for it. The code is the driver's own, and the API's
// for attaching only: an error without one takes the code of an earlier error away.
func failed(a *storagev1.VolumeAttachment, answer Answer, now metav1.Time) Result {
	text, detaching := answer.Text, a.DeletionTimestamp != nil
	if answer.NoSecret != "" {
		text += "; " + answer.NoSecret
	}
	var code any
	if answer.Code != "" && !detaching {
		code = answer.Number
	}
	status, isNew := errorStatus(a, text, code, now)
	return Result{Status: status, Warn: isNew, Retry: true, Because: Failed(a, detaching, text)}
}

// Refused decides what is written when an attachment cannot go on before something changes, which wakes it: the reason,
// once.
func Refused(a *storagev1.VolumeAttachment, why volume.Because, now metav1.Time) Result {
	r := Result{Because: why}
	if status, isNew := errorStatus(a, why.Message, nil, now); isNew {
		r.Status, r.Warn = status, true
	}
	return r
}

// errorStatus returns the field of the status that an error belongs into (S1-059, S1-066), and whether its text is new
// there.
func errorStatus(a *storagev1.VolumeAttachment, text string, code any, now metav1.Time) (map[string]any, bool) {
	field, written := "attachError", a.Status.AttachError
	if a.DeletionTimestamp != nil {
		field, written = "detachError", a.Status.DetachError
	}
	return map[string]any{field: map[string]any{"time": now, "message": text, "errorCode": code}},
		written == nil || written.Message != text
}

// ToDetach returns an attachment that went away without a detach as one that is to be detached.
func ToDetach(gone *storagev1.VolumeAttachment, now metav1.Time) *storagev1.VolumeAttachment {
	a := gone.DeepCopy()
	a.DeletionTimestamp = &now
	if !Kept(a) {
		// Somebody has removed the finalizer by hand.
		a.Finalizers = append(a.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
	}
	return a
}

// Mount is what a node knows of the attachment by which it is about to mount a volume.
type Mount struct {
	Driver, Handle, Volume, Node string
	// Listed says that the node's volumesAttached has the volume.
	Listed bool
	// Attachment is what the API shows now; nil when it shows none.
	Attachment *storagev1.VolumeAttachment
}

// Problem returns why the node may not mount; empty when it may. Wait says that it is no failure, and that no watch
// tells when it is over.
func (m Mount) Problem() (text string, wait bool) {
	a, name := m.Attachment, NameOf(m.Driver, m.Handle, m.Node)
	switch {
	case !m.Listed:
		return "volume " + m.Volume + " is being detached from node " + m.Node, true
	case a == nil:
		// The authorizer shows an attachment a moment after it is made.
		return "attachment " + name + " of volume " + m.Volume + " is not to be seen", true
	case a.DeletionTimestamp != nil || !a.Status.Attached:
		return "attachment " + name + " of volume " + m.Volume + " is not there or is going away", true
	case a.Spec.NodeName != m.Node || a.Spec.Attacher != m.Driver:
		return "attachment " + name + " is of driver " + a.Spec.Attacher + " and node " + a.Spec.NodeName + ", wanted " +
			m.Driver + " and " + m.Node, false
	}
	return "", false
}

// resourceExhausted is gRPC's code by which a driver says that a node has as many volumes as it can.
const resourceExhausted = 8

// NodeFull says whether an attachment is not attached because its node takes no more volumes of the driver.
func NodeFull(a *storagev1.VolumeAttachment) bool {
	e := a.Status.AttachError
	return e != nil && e.ErrorCode != nil && *e.ErrorCode == resourceExhausted
}
