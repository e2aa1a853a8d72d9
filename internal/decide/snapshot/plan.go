package snapshot

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// DriverStep is the next step for the driver's part of a content.
type DriverStep int

const (
	// Rest does nothing now.
	Rest DriverStep = iota
	// Record writes the content with the intent, and continues with Take.
	Record
	// Take makes the driver take it, or report whether it is ready.
	Take
	// Get queries the driver: another program has taken the snapshot.
	Get
	// Look finds the snapshot in the driver's list; groups have no list.
	Look
	// Note writes the status of the content.
	Note
	// Forget writes the content, which has no intent any more.
	Forget
	// Remove makes the driver delete it.
	Remove
	// Release writes the content, which the driver no longer needs.
	Release
)

// Request is the content of a driver call.
type Request struct {
	// Name is the name of what is taken from the volumes with the handles Sources: a snapshot has one source, a group any
	// number.
	Name       string
	Sources    []string
	Parameters map[string]string
	// Places are segments, in at least one of which it must be usable; empty lets the driver choose.
	Places []topology.Segment
	// Handle is the handle to look for or to delete; for a group, Members are the handles of its snapshots.
	Handle  string
	Members []string
	// Secret is for the call, or nil.
	Secret *corev1.SecretReference
}

// PlanFor is the next step of a content at its driver, and its reason.
type PlanFor[C any] struct {
	Step    DriverStep
	Content C
	Request Request
	Because volume.Because
	// Placed, if set, is the content with its place, which is written before its status, because volumes are created from
	// it after that.
	Placed C
	// Warn means that something is wrong, and Event that the reason is recorded as an event with the step.
	Warn, Event bool
	// Repeat means that the call is repeated after a back-off, and Poll that this is not a failure.
	Repeat, Poll bool
	// First means that no earlier call can have taken anything, and Refused that the driver has certainly taken nothing.
	First, Refused bool
}

// Calls says whether the step is a call of the driver.
func (p PlanFor[C]) Calls() bool {
	switch p.Step {
	case Record, Take, Get, Look, Remove:
		return true
	}
	return false
}

// Again returns a plan that repeats the call after its step.
func (p PlanFor[C]) Again() PlanFor[C] {
	p.Repeat = true
	return p
}

// NotTaken returns the plan after a call that has taken nothing, or not certainly: unless the content is deleted and
// nothing was taken, the call is repeated.
func (p PlanFor[C]) NotTaken(certainly, deleted bool) PlanFor[C] {
	p.Refused, p.Repeat = certainly, !certainly || !deleted
	return p
}

// Known are facts from calls about a content that are not in the API.
type Known struct {
	// Refused means that the driver's last answer proves that nothing was taken.
	Refused bool
	// Removed means that the driver has deleted what the content refers to.
	Removed bool
}

// Noted returns a copy of a content with an annotation; an empty value removes it.
func Noted[C Object[C]](c C, key, value string) C {
	c = c.DeepCopy()
	all := maps.Clone(c.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	if value == "" {
		delete(all, key)
	}
	c.SetAnnotations(all)
	return c
}

// RecordedSecret returns the Secret that two annotations of a content name; nil if one is missing.
func RecordedSecret(c metav1.Object, name, namespace string) *corev1.SecretReference {
	s := &corev1.SecretReference{Name: c.GetAnnotations()[name], Namespace: c.GetAnnotations()[namespace]}
	if s.Name == "" || s.Namespace == "" {
		return nil
	}
	return s
}

// Changed says whether a content has other annotations or more finalizers than before.
func Changed(before, after metav1.Object) bool {
	return !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		len(after.GetFinalizers()) > len(before.GetFinalizers())
}
