package attach

import (
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Answer is the result of an attach or a detach, or of its preparation.
type Answer struct {
	volume.Answer
	// Published is the publish context that an attach has returned.
	Published map[string]string
	// Vanished says why something was attached again that its driver did not list; only the next list ends that.
	Vanished string
}

// Result is what follows from an answer.
type Result struct {
	// Status has the fields to change in the attachment's status; nil if it is up to date.
	Status map[string]any
	// Warn says that the reason is new and becomes an event: a call that fails is repeated many times.
	Warn bool
	// Release says that the attacher's finalizer is removed: only a finished detach means detached (S1-064, S1-086).
	Release bool
	// Retry says that the call is repeated after a back-off.
	Retry   bool
	Because volume.Because
}

// After decides what follows from the end of a step that called the driver or prepared a call. The
// finalizers stay after every failure: only a successful detach ends an attach.
func After(step Step, a *storagev1.VolumeAttachment, answer Answer, now metav1.Time) Result {
	switch {
	case answer.Outcome != volume.Done:
		return failed(a, answer, now)
	case step == Detach:
		done := plan(Nothing, volume.ReasonDetaching, volume.Controller("attacher"),
			Name(a)+" is detached from node "+a.Spec.NodeName)
		return Result{Release: true, Because: done.Because}
	}
	r := Result{Because: plan(Nothing, volume.ReasonAttached, volume.Actor{},
		Name(a)+" is attached to node "+a.Spec.NodeName).Because}
	attachError, same := any(nil), a.Status.AttachError == nil
	if answer.Vanished != "" {
		status, isNew := errorStatus(a, answer.Vanished, nil, now)
		attachError, same = status["attachError"], !isNew
	}
	if s := a.Status; !s.Attached || !same || !maps.Equal(s.AttachmentMetadata, answer.Published) {
		// S1-055 to S1-057.
		r.Status = map[string]any{"attached": true, "attachmentMetadata": answer.Published, "attachError": attachError}
	}
	return r
}

// Vanished decides what is written, once, to an attachment that its driver does not list: the reason.
func Vanished(c Correction, now metav1.Time) Result {
	return once(c.Attachment, c.Cause, c.Because, now)
}

// Agreed decides what is written to an attachment that its driver lists again.
func Agreed(a *storagev1.VolumeAttachment) Result {
	return Result{
		Status: map[string]any{"attachError": nil},
		Because: plan(Nothing, volume.ReasonAttached, volume.Actor{},
			Name(a)+" is attached to node "+a.Spec.NodeName).Because,
	}
}

// failed requests a retry and writes the error into the attachment's status. The code is written for
// attaching only, as the API has it: an error without a code removes an earlier code.
func failed(a *storagev1.VolumeAttachment, answer Answer, now metav1.Time) Result {
	detaching := a.DeletionTimestamp != nil
	var code any
	if answer.Code != "" && !detaching {
		code = answer.Number
	}
	status, isNew := errorStatus(a, answer.Failure(), code, now)
	return Result{Status: status, Warn: isNew, Retry: true, Because: Failed(a, detaching, answer.Answer)}
}

// AnswerOf returns the answer of the call that left this error in an attachment's status.
func AnswerOf(e *storagev1.VolumeError) volume.Answer {
	a := volume.AnswerIn(e.Message)
	if n, all := ptr.Deref(e.ErrorCode, -1), volume.Codes(); n >= 0 && int(n) < len(all) {
		a.Code = all[n]
	}
	return a
}

// Refused decides what is written, once, when an attachment cannot proceed before an object changes.
func Refused(a *storagev1.VolumeAttachment, why volume.Because, now metav1.Time) Result {
	return once(a, why.Message, why, now)
}

// once writes the text of a reason into the attachment's status and reports the reason, unless the text is
// written already.
func once(a *storagev1.VolumeAttachment, text string, why volume.Because, now metav1.Time) Result {
	r := Result{Because: why}
	if status, isNew := errorStatus(a, text, nil, now); isNew {
		r.Status, r.Warn = status, true
	}
	return r
}

// errorStatus returns the change of the status field for an error (S1-059, S1-066), and whether its
// text is new.
func errorStatus(a *storagev1.VolumeAttachment, text string, code any, now metav1.Time) (map[string]any, bool) {
	field, written := "attachError", a.Status.AttachError
	if a.DeletionTimestamp != nil {
		field, written = "detachError", a.Status.DetachError
	}
	return map[string]any{field: map[string]any{"time": now, "message": text, "errorCode": code}},
		written == nil || written.Message != text
}

// ToDetach returns an attachment that was deleted without a detach as one that still has to be detached.
func ToDetach(gone *storagev1.VolumeAttachment, now metav1.Time) *storagev1.VolumeAttachment {
	a := gone.DeepCopy()
	a.DeletionTimestamp = &now
	if !HasFinalizer(a) {
		// A user has removed the finalizer by hand.
		a.Finalizers = append(a.Finalizers, volume.AttacherFinalizer(a.Spec.Attacher))
	}
	return a
}

// Mount is what a node knows of the attachment of a volume that it is about to mount.
type Mount struct {
	Driver, Handle, Volume, Node string
	// Listed says that the node's volumesAttached has the volume.
	Listed bool
	// Attachment is what the API shows now; nil when it shows none.
	Attachment *storagev1.VolumeAttachment
	// NodeID is the driver's id of the node; "" if it is unknown.
	NodeID string
}

// UnderOtherID says whether the volume is attached to the node under another id than the driver's current one, as after
// a machine was replaced. The node then does not begin to use it, because it has to be detached.
func (m Mount) UnderOtherID() bool { return underOtherID(m.Attachment, m.NodeID) }

func underOtherID(a *storagev1.VolumeAttachment, now string) bool {
	recorded := a.Annotations[volume.AnnNodeID]
	return recorded != "" && now != "" && recorded != now
}

// Problem returns why the node may not mount; empty if it may. wait means that this is not a failure, and that no watch
// reports its end.
func (m Mount) Problem() (text string, wait bool) {
	a, name := m.Attachment, NameOf(m.Driver, m.Handle, m.Node)
	switch {
	case !m.Listed:
		return "volume " + m.Volume + " is being detached from node " + m.Node, true
	case a == nil:
		// The authorizer recognizes an attachment a moment after its creation.
		return "attachment " + name + " of volume " + m.Volume + " is not visible yet", true
	case a.DeletionTimestamp != nil || !a.Status.Attached:
		return "attachment " + name + " of volume " + m.Volume + " does not exist or is being deleted", true
	case a.Spec.NodeName != m.Node || a.Spec.Attacher != m.Driver:
		return "attachment " + name + " belongs to driver " + a.Spec.Attacher + " and node " + a.Spec.NodeName + ", wanted " +
			m.Driver + " and " + m.Node, false
	}
	return "", false
}

// resourceExhausted is the gRPC code with which a driver reports that a node has reached its limit.
const resourceExhausted = 8

// NodeFull says whether an attach failed because of the driver's limit on the node.
func NodeFull(a *storagev1.VolumeAttachment) bool {
	e := a.Status.AttachError
	return e != nil && e.ErrorCode != nil && *e.ErrorCode == resourceExhausted
}
