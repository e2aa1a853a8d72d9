package why

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/explain/lease"
	"volplane.dev/volplane/internal/explain/state"
)

// Walk follows the references from object to object, and calls the decisions about each.
type Walk struct {
	state.Objects
	// View finds the objects.
	View cluster.View
	*derived
	leases lease.Leases
	// deletions are the Pods that were deleted because of their nodes, the newest one first.
	deletions []state.Deletion
}

// derived is computed on first use.
type derived struct {
	// plans are those of nodes, by name.
	plans map[string]attach.NodePlan
	// free are the volumes that any claim may take.
	free *bind.Free
}

// Of returns the walk through the objects, which must not change any more.
func Of(o state.Objects) Walk {
	return Walk{
		Objects: o, View: o.View(), derived: &derived{plans: map[string]attach.NodePlan{}},
		leases: lease.Read(o.Leases, o.LeasesHidden, o.Now), deletions: o.Warnings.Deletions(),
	}
}

// claim returns the facts about a claim, which need not exist.
func (w Walk) claim(ns, name string) facts {
	f := facts{Walk: w, Namespace: ns, ClaimName: name, Claim: cluster.Find(w.View.Claims, ns+"/"+name)}
	class := ""
	if f.Claim != nil {
		class, _ = bind.ClassOf(f.Claim)
		f.Volume = cluster.Find(w.View.Volumes, f.Claim.Spec.VolumeName)
	}
	return f.withClass(class)
}

// volume returns the facts about a volume, and of the claim that it is bound to.
func (w Walk) volume(v *corev1.PersistentVolume) facts {
	if ref := v.Spec.ClaimRef; ref != nil &&
		(v.Status.Phase == corev1.VolumeBound || bind.Together(cluster.Find(w.View.Claims, ref.Namespace+"/"+ref.Name), v)) {
		return w.claim(ref.Namespace, ref.Name)
	}
	return facts{Walk: w, Volume: v}.withClass(bind.VolumeClassOf(v))
}

func (f facts) withClass(class string) facts {
	f.Class = cluster.Find(f.View.Classes, class)
	f.Driver = cluster.Find(f.View.Drivers, f.driverName())
	return f
}
