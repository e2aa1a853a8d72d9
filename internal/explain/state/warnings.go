package state

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/explain/foreign"
	"volplane.dev/volplane/internal/volume"
)

// Warnings are events of type Warning, oldest first.
type Warnings []*corev1.Event

// Condition returns what the newest warning about the object says, with this reason.
// The event names the next actor if volplane has recorded it; otherwise its text does.
// repeats is the actor that retries.
func (w Warnings) Condition(about metav1.Object, reason volume.Reason, repeats volume.Actor) (volume.Condition, bool) {
	e := w.About(about.GetUID(), reason)
	if e == nil {
		return volume.Condition{}, false
	}
	return volume.Condition{Because: Told(e, repeats), Stuck: true}, true
}

// Told returns what a warning reports. If volplane has recorded the event, its annotations name the next actor and
// the cause; otherwise they are derived from its text. repeats is the actor that retries.
func Told(e *corev1.Event, repeats volume.Actor) volume.Because {
	return volume.Because{
		Reason: volume.Reason(e.Reason), Message: Message(e), Cause: CauseOf(e),
		Next: cmp.Or(volume.ParseActor(e.Annotations[volume.AnnNext]), volume.AnswerIn(e.Message).Next(repeats)),
	}
}

// Message returns the message of a warning.
func Message(e *corev1.Event) string { return volume.MessageOf(e.Message, e.Annotations) }

// CauseOf returns the cause that a warning reports, with the volume that it names.
func CauseOf(e *corev1.Event) volume.Cause {
	c := volume.CauseOf(e.Annotations[volume.AnnCause], e.Message)
	if name := foreign.VolumeIn(e.Message); c.Object == "" && name != "" {
		c.Object = "pv/" + name
	}
	return c
}

// Deletion is the deletion of a Pod because of its node.
type Deletion struct {
	// Event is about the Pod; it names the node and the reason.
	Event *corev1.Event
	// Claims are the names of the claims that the Pod used.
	Claims []string
}

// Deletions returns the deletions of Pods that used claims, the newest one first.
func (w Warnings) Deletions() []Deletion {
	var out []Deletion
	for _, e := range slices.Backward(w) {
		if e.Reason != string(volume.ReasonNodeGone) {
			continue
		}
		if claims := e.Annotations[volume.AnnClaims]; claims != "" {
			out = append(out, Deletion{e, strings.Split(claims, ",")})
		}
	}
	return out
}

// About returns the newest warning about the object of a UID, and not of an earlier one of
// its name, with the reason or, when that is empty, any; nil when there is none.
func (w Warnings) About(uid types.UID, reason volume.Reason) *corev1.Event {
	for _, e := range slices.Backward(w) {
		if e.InvolvedObject.UID == uid && (reason == "" || e.Reason == string(reason)) {
			return e
		}
	}
	return nil
}
