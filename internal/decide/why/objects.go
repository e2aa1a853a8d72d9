package why

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// Objects are what is known of a cluster: the objects that were read, all or at
// least those that the question concerns, and what is told beside them.
type Objects struct {
	cluster.Lists
	Namespaces []*corev1.Namespace
	// Snapshots are the VolumeSnapshots that are asked about.
	Snapshots []Snapshot
	// Moves are the moves of volumes between a Flex plugin and the bridge that
	// were begun and not finished.
	Moves []Move
	// Warnings are events of type Warning, oldest first.
	Warnings []*corev1.Event
	// Leases tell which programs live, and LeasesHidden that they could not be read.
	Leases       []*coordinationv1.Lease
	LeasesHidden bool
	// Begun are the open intents of provisioners: volumes that a driver was asked for
	// without a final answer. Now is when they were read.
	Begun []*provision.Intent
	Now   time.Time
	// MakingHidden says that Begun could not be read.
	MakingHidden bool
	// Full says why the control plane takes no new objects; nil when it does.
	Full *volume.Because
}

// Move is a volume that is being moved, with its claim, "namespace/name", if it
// has one; Back says that it is moved back.
type Move struct {
	Volume, Claim string
	Back          bool
}

// known finds the objects by what refers to them.
type known struct {
	Objects
	view cluster.View
	*derived
	// leases are found by name; clock is the time at the cluster.
	leases map[string][]*coordinationv1.Lease
	clock  time.Time
}

// derived is worked out when it is asked for first.
type derived struct {
	// plans are those of nodes, by name.
	plans map[string]attach.NodePlan
	// free are the volumes that any claim may take.
	free *bind.Free
}

func index(o Objects) known {
	k := known{Objects: o, view: o.View(), derived: &derived{plans: map[string]attach.NodePlan{}}}
	k.readLeases()
	return k
}

// found returns the object with a key; nil when there is none.
func found[T any](in cluster.Objects[*T], key string) *T {
	o, _ := in.Get(key)
	return o
}

// claim returns the facts about a claim, which need not exist.
func (k known) claim(ns, name string) facts {
	f := facts{known: k, Namespace: ns, ClaimName: name, Claim: found(k.view.Claims, ns+"/"+name)}
	class := ""
	if f.Claim != nil {
		class, _ = bind.ClassOf(f.Claim)
		f.Volume = found(k.view.Volumes, f.Claim.Spec.VolumeName)
	}
	return f.withClass(class)
}

// volume returns the facts about a volume, and of the claim that it is bound to.
func (k known) volume(v *corev1.PersistentVolume) facts {
	if ref := v.Spec.ClaimRef; ref != nil &&
		(v.Status.Phase == corev1.VolumeBound || bind.Together(found(k.view.Claims, ref.Namespace+"/"+ref.Name), v)) {
		return k.claim(ref.Namespace, ref.Name)
	}
	return facts{known: k, Volume: v}.withClass(bind.VolumeClassOf(v))
}

func (f facts) withClass(class string) facts {
	f.Class = found(f.view.Classes, class)
	if d := bind.DefaultClass(f.Classes); d != nil {
		f.DefaultClass = d.Name
	}
	f.Driver = found(f.view.Drivers, f.driverName())
	return f
}

// first returns the first element that fits; nil when none does.
func first[T any](all []*T, fits func(*T) bool) *T {
	if i := slices.IndexFunc(all, fits); i >= 0 {
		return all[i]
	}
	return nil
}
