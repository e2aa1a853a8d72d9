package state

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
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
	o.Warnings = only(o.Warnings, func(e *corev1.Event) bool {
		return e.Namespace == ns || e.Namespace == metav1.NamespaceDefault
	})
	o.Begun = only(o.Begun, func(i *provision.Intent) bool { return i.Claim.Namespace == ns })
	return o
}

func in[T metav1.Object](ns string, all []T) []T {
	return only(all, func(o T) bool { return o.GetNamespace() == ns })
}

func only[T any](all []T, wanted func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(o T) bool { return !wanted(o) })
}

// Move is a volume that is being moved, with its claim, "namespace/name", if it
// has one; Back says that it is moved back.
type Move struct {
	Volume, Claim string
	Back          bool
}
