package snapshot

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Object is what decisions need of a Kubernetes object.
type Object[T any] interface {
	comparable
	metav1.Object
	DeepCopy() T
}

// Kind is what differs between snapshots and groups of snapshots for the decisions that both share: S is what a user
// has created, and C its content. Other is what else is written for it.
type Kind[S Object[S], C Object[C], Other any] struct {
	ContentKind[C]
	// State returns the address of the error in the status of S, which it adds if S has none, and whether S is ready.
	State func(S) (problem **snapshotv1.VolumeSnapshotError, ready **bool)
	// Bind has a content refer to the UID of S, and to its class unless it names one.
	Bind func(C, S)
	// These reasons are about S; the last three, about the content that it names.
	Misbound, Missing, BindFailed, Mismatch, HandleSet, ContentMisbound volume.Reason
}

// ContentKind is the difference between the contents of snapshots and those of groups.
type ContentKind[C Object[C]] struct {
	// Controller binds the user's object to a content.
	Controller volume.Actor
	// View returns what decisions read of a content.
	View func(C) View
	// ContentState is State for a content.
	ContentState func(C) (problem **snapshotv1.VolumeSnapshotError, ready **bool)
	// Wanted describes, as part of a sentence, what the driver must take.
	Wanted func(View) string
	// Look queries the driver about something that existed before its content.
	Look func(DriverFactsOf[C]) PlanFor[C]
	Marks
	Words
	// These reasons are about a content; the last ones, about the calls of its driver.
	Invalid, Pending, Ready, ClassMissing, ClassMismatch, TakeFailed, DeleteFailed volume.Reason
}

// Marks are the annotations and the finalizer of a content.
type Marks struct {
	// Finalizer keeps a content. Creating says that the driver may be taking the snapshot, and Deleting that the user's
	// object is being deleted.
	Finalizer, Creating, Deleting string
	// SecretName and SecretNamespace name the Secret for taking and deleting.
	SecretName, SecretNamespace string
}

// Words are those in which the sentences differ.
type Words struct {
	// Noun is what a user has created, ClassKind the kind of its class, and One and Several what the driver takes.
	Noun, ClassKind, One, Several string
	// Sources are what the source of a content can be; Part is added where another content may refer to a part.
	Sources, Part string
	// Keys begins the keys of the parameters that name the content, Prefix is the usual prefix of names at the driver, and
	// Capability is what the driver needs.
	Keys, Prefix, Capability string
}

// View is what decisions read of a content.
type View struct {
	Driver, Class string
	// Ref refers to the user's object; it has no UID before both are bound.
	Ref corev1.ObjectReference
	// Given means that the content names an existing handle of the driver instead of the volumes with the handles Sources;
	// Valid, that it names one of them.
	Given, Valid bool
	Sources      []string
	// Handle is the driver's handle, and Members are its parts, as far as they are known. Taken means that the status has
	// the handle.
	Handle  string
	Members []string
	Taken   bool
	// Member means that it is taken with a group, and Grouped that it is deleted with one.
	Member, Grouped bool
	// Ready says that it can be used, and Deletes that it is deleted with the content.
	Ready, Deletes bool
	// Problem is the error in the status.
	Problem *snapshotv1.VolumeSnapshotError
}

// PointsTo says whether a content refers to an object, by its UID or, before they are bound, by its name.
func (v View) PointsTo(o metav1.Object) bool {
	return v.Ref.Namespace == o.GetNamespace() && v.Ref.Name == o.GetName() && (v.Ref.UID == "" || v.Ref.UID == o.GetUID())
}

// IsOf says whether a content is bound to an object.
func (v View) IsOf(o metav1.Object) bool { return v.PointsTo(o) && v.Ref.UID == o.GetUID() }

// Step is the next step for the user's object, for its content or for something else.
type Step int

const (
	// Nothing means that no step is due now.
	Nothing Step = iota
	// WriteSnapshot writes Plan.Snapshot, except its status.
	WriteSnapshot
	// WriteStatus writes the status of Plan.Snapshot.
	WriteStatus
	// WriteOther writes Plan.Other.
	WriteOther
	// CreateContent creates Plan.Content.
	CreateContent
	// WriteContent writes Plan.Content, except its status.
	WriteContent
	// DeleteContent deletes Plan.Content.
	DeleteContent
	// Confirm reads from the API server itself whether the content exists, or to which object a content or a member is
	// bound.
	Confirm
)

// PlanOf is the next step and its reason.
type PlanOf[S, C, Other any] struct {
	Step     Step
	Snapshot S
	Content  C
	Other    Other
	// Binds means that the written content gets the UID of the snapshot.
	Binds   bool
	Because volume.Because
	// Warn means that something is wrong, and Event that the reason is recorded as an event after the step.
	Warn, Event bool
	// Also are further reasons that are recorded with the step.
	Also []volume.Because
}

// ContentFactsOf is everything on which the common decision about one content depends.
type ContentFactsOf[S, C any] struct {
	Content C
	// Snapshot has the name that the content refers to; nil if it does not exist. Absent says that the API server itself
	// has said so.
	Snapshot S
	Absent   bool
}

func (k *Kind[S, C, O]) nothing(r volume.Reason, next volume.Actor, message string) PlanOf[S, C, O] {
	return PlanOf[S, C, O]{Because: volume.Say(r, next, message)}
}

// Failed records an error in the status of a snapshot, unless it is there already.
func (k *Kind[S, C, O]) Failed(s S, now metav1.Time, b volume.Because) PlanOf[S, C, O] {
	p := PlanOf[S, C, O]{Because: b, Warn: true}
	next := s.DeepCopy()
	problem, ready := k.State(next)
	if *problem != nil && ptr.Deref((*problem).Message, "") == b.Message && !ptr.Deref(*ready, false) {
		return p
	}
	p.Step, p.Event, p.Snapshot = WriteStatus, true, next
	*problem, *ready = &snapshotv1.VolumeSnapshotError{Time: &now, Message: &b.Message}, ptr.To(false)
	return p
}

// user is Failed for what only a user can mend.
func (k *Kind[S, C, O]) user(s S, now metav1.Time, r volume.Reason, message string) PlanOf[S, C, O] {
	return k.Failed(s, now, volume.Say(r, volume.User(), message))
}

// NoContent decides about a snapshot whose content is missing. No other snapshot is taken in its place, because it
// would have other data.
func (k *Kind[S, C, O]) NoContent(s S, content string, absent bool, now metav1.Time) PlanOf[S, C, O] {
	b := volume.Say(k.Missing, volume.User(), "content "+content+" of "+k.Noun+" "+s.GetName()+" does not exist")
	if !absent {
		return PlanOf[S, C, O]{Step: Confirm, Because: b}
	}
	return k.Failed(s, now, b)
}

// Used decides about a snapshot that can be used and has a content.
func (k *Kind[S, C, O]) Used(s S, c C, now metav1.Time) PlanOf[S, C, O] {
	name := k.Noun + " " + s.GetName()
	if !k.View(c).IsOf(s) {
		return k.user(s, now, k.Misbound, "content "+c.GetName()+" is not bound to "+name)
	}
	if b, lost := volume.LostWithNode(name, c.GetAnnotations()); lost {
		return PlanOf[S, C, O]{Warn: true, Event: true, Because: b}
	}
	return k.nothing(k.Ready, volume.Actor{}, name+" is ready to use")
}

// Adopt binds a snapshot to a content that exists before it; bound says that nothing is left to do.
func (k *Kind[S, C, O]) Adopt(s S, c C, now metav1.Time) (p PlanOf[S, C, O], bound bool) {
	v, content := k.View(c), "content "+c.GetName()
	switch {
	case !v.Given:
		return k.user(s, now, k.Mismatch,
			content+" does not name a "+k.One+" of a driver: it was created for another "+k.Noun), false
	case !v.PointsTo(s):
		return k.user(s, now, k.ContentMisbound, content+" is for another "+k.Noun+" than "+s.GetName()), false
	case v.Ref.UID != "":
		return p, true
	case c.GetDeletionTimestamp() != nil:
		return k.user(s, now, k.ContentMisbound, content+" is being deleted"), false
	}
	next := c.DeepCopy()
	k.Bind(next, s)
	return PlanOf[S, C, O]{Step: WriteContent, Content: next, Binds: true, Because: volume.Say(k.Pending, k.Controller,
		content+" is being bound to "+k.Noun+" "+s.GetName())}, false
}

// Owned decides about the content with the name that is reserved for the snapshot's own content; bound means that
// nothing is left to do.
func (k *Kind[S, C, O]) Owned(s S, c C, now metav1.Time) (p PlanOf[S, C, O], bound bool) {
	v, content := k.View(c), "content "+c.GetName()
	switch {
	case v.Given:
		return k.user(s, now, k.HandleSet,
			content+" names a "+k.One+" of the driver, although it should be created for "+k.Noun+" "+s.GetName()), false
	case !v.IsOf(s):
		return k.user(s, now, k.ContentMisbound, content+" is for another "+k.Noun+" than "+s.GetName()), false
	}
	return p, true
}

// NotBound is the plan after the write that binds a content was refused.
func (k *Kind[S, C, O]) NotBound(s S, c C, now metav1.Time, problem string) PlanOf[S, C, O] {
	return k.Failed(s, now, volume.Say(k.BindFailed, k.Controller,
		"content "+c.GetName()+" could not be bound to "+k.Noun+" "+s.GetName()+": "+problem))
}

// DeleteContent decides about a snapshot that is being deleted and has a content; release removes the snapshot's
// finalizers.
func (k *Kind[S, C, O]) DeleteContent(s S, c C, release func(why string) PlanOf[S, C, O]) PlanOf[S, C, O] {
	v, content, name := k.View(c), "content "+c.GetName(), k.Noun+" "+s.GetName()
	driver := volume.Driver(v.Driver)
	switch {
	case c.GetAnnotations()[k.Deleting] != yes:
		return PlanOf[S, C, O]{Step: WriteContent, Content: Noted(c, k.Deleting, yes), Because: volume.Say(
			volume.ReasonTerminating, k.Controller, content+" is to be deleted with "+name)}
	case !v.Deletes:
		return release(content + " is retained without " + name)
	case c.GetDeletionTimestamp() == nil:
		return PlanOf[S, C, O]{Step: DeleteContent, Content: c, Because: volume.Say(
			volume.ReasonTerminating, driver, content+" is deleted with "+name)}
	}
	b := volume.Say(volume.ReasonTerminating, driver,
		name+" is being deleted; it stays until driver "+v.Driver+" has deleted what "+content+" stands for")
	if cause := ErrorIn(v.Problem); cause != "" {
		b.Message += ": " + cause
		b.Next = volume.AnswerIn(cause).Next(driver)
	}
	return PlanOf[S, C, O]{Because: b}
}

// Content decides about the parts of a content that do not concern its driver. A missing snapshot is no reason to
// delete anything: it may not have been restored from a backup yet.
func (k *Kind[S, C, O]) Content(f ContentFactsOf[S, C]) PlanOf[S, C, O] {
	c, v := f.Content, k.View(f.Content)
	content, name := "content "+c.GetName(), k.Noun+" "+v.Ref.Name
	switch {
	case !v.Valid:
		return PlanOf[S, C, O]{Warn: true, Event: true, Because: volume.Say(
			k.Invalid, volume.User(), content+" must name "+k.Sources)}
	case v.Ref.UID == "":
		return k.nothing(volume.ReasonNothingToDo, volume.User(),
			content+" is for "+name+", which has not been bound to it yet")
	case c.GetDeletionTimestamp() != nil:
		return k.contentDeleted(f, content, name)
	case !has(c, k.Finalizer):
		next := c.DeepCopy()
		with(next, k.Finalizer)
		return PlanOf[S, C, O]{Step: WriteContent, Content: next, Because: volume.Say(
			k.Pending, volume.Driver(v.Driver), content+" is kept for "+name)}
	}
	return k.nothing(volume.ReasonNothingToDo, volume.Actor{}, content+" is kept as it should be")
}

// contentDeleted decides about a bound content that is being deleted.
func (k *Kind[S, C, O]) contentDeleted(f ContentFactsOf[S, C], content, name string) PlanOf[S, C, O] {
	var none S
	c, v := f.Content, k.View(f.Content)
	orphaned := volume.Say(volume.ReasonTerminating, volume.Driver(v.Driver),
		content+" is being deleted, and "+name+" is gone")
	switch {
	case !has(c, k.Finalizer) || c.GetAnnotations()[k.Deleting] == yes:
		return k.nothing(volume.ReasonTerminating, volume.Driver(v.Driver), content+" is being deleted by its driver")
	case f.Snapshot != none && f.Snapshot.GetUID() == v.Ref.UID:
		return k.nothing(volume.ReasonTerminating, volume.User(),
			content+" is being deleted; it stays until "+name+" is deleted")
	case f.Snapshot == none && !f.Absent:
		return PlanOf[S, C, O]{Step: Confirm, Because: orphaned}
	}
	// An administrator deletes a content whose snapshot is gone.
	return PlanOf[S, C, O]{Step: WriteContent, Content: Noted(c, k.Deleting, yes), Because: orphaned}
}

// ErrorIn returns the message of an error in a status; "" without one.
func ErrorIn(e *snapshotv1.VolumeSnapshotError) string {
	if e == nil {
		return ""
	}
	return ptr.Deref(e.Message, "")
}
