package state

import (
	"cmp"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/foreign"
	"volplane.dev/volplane/internal/volume"
)

// Objects are what is known about a cluster: the objects that were read, all or at least
// those that the question concerns, and further information about them.
type Objects struct {
	cluster.Lists
	Namespaces []*corev1.Namespace
	// SnapshotsHidden says that contents or classes of snapshots could not be read.
	SnapshotsHidden bool
	// Moves are the moves of volumes between a Flex plugin and the bridge that
	// were begun and not finished.
	Moves    []Move
	Warnings Warnings
	// Leases show which programs are alive; LeasesHidden says that they could not be read.
	Leases       []*coordinationv1.Lease
	LeasesHidden bool
	// Begun are the open intents of provisioners: volumes that were requested from a driver,
	// without a final answer. Now is when they were read.
	Begun []*provision.Intent
	Now   time.Time
	// MakingHidden says that Begun could not be read.
	MakingHidden bool
	// Full says why the control plane takes no new objects; nil when it does.
	Full *volume.Because
}

// In returns the objects without those of other namespaces, but with all warnings of the default one: those about
// volumes and nodes are there.
func (o Objects) In(ns string) Objects {
	o.Claims, o.Pods = in(ns, o.Claims), in(ns, o.Pods)
	o.Snapshots, o.Groups = in(ns, o.Snapshots), in(ns, o.Groups)
	o.Warnings = Only(o.Warnings, func(e *corev1.Event) bool {
		return e.Namespace == ns || e.Namespace == metav1.NamespaceDefault
	})
	o.Begun = Only(o.Begun, func(i *provision.Intent) bool { return i.Claim.Namespace == ns })
	return o
}

func in[T metav1.Object](ns string, all []T) []T {
	return Only(all, func(o T) bool { return o.GetNamespace() == ns })
}

// Only returns those that are wanted.
func Only[T any](all []T, wanted func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(o T) bool { return !wanted(o) })
}

// Move is a volume that is being moved, with its claim, "namespace/name", if it
// has one; Back says that it is moved back.
type Move struct {
	Volume, Claim string
	Back          bool
}

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
	return volume.Condition{Because: FromWarning(e, repeats), Stuck: true}, true
}

// FromWarning returns what a warning reports. If volplane has recorded the event, its annotations name the next actor
// and the cause; otherwise they are derived from its text. repeats is the actor that retries.
func FromWarning(e *corev1.Event, repeats volume.Actor) volume.Because {
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
