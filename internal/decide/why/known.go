package why

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/decide/state"
)

// known finds the objects by what refers to them.
type known struct {
	state.Objects
	view cluster.View
	*derived
	leases lease.Leases
}

// derived is worked out when it is asked for first.
type derived struct {
	// plans are those of nodes, by name.
	plans map[string]attach.NodePlan
	// free are the volumes that any claim may take.
	free *bind.Free
}

func index(o state.Objects) known {
	return known{
		Objects: o, view: o.View(), derived: &derived{plans: map[string]attach.NodePlan{}},
		leases: lease.Read(o.Leases, o.LeasesHidden, o.Now),
	}
}

// claim returns the facts about a claim, which need not exist.
func (k known) claim(ns, name string) facts {
	f := facts{known: k, Namespace: ns, ClaimName: name, Claim: cluster.Found(k.view.Claims, ns+"/"+name)}
	class := ""
	if f.Claim != nil {
		class, _ = bind.ClassOf(f.Claim)
		f.Volume = cluster.Found(k.view.Volumes, f.Claim.Spec.VolumeName)
	}
	return f.withClass(class)
}

// volume returns the facts about a volume, and of the claim that it is bound to.
func (k known) volume(v *corev1.PersistentVolume) facts {
	if ref := v.Spec.ClaimRef; ref != nil &&
		(v.Status.Phase == corev1.VolumeBound || bind.Together(cluster.Found(k.view.Claims, ref.Namespace+"/"+ref.Name), v)) {
		return k.claim(ref.Namespace, ref.Name)
	}
	return facts{known: k, Volume: v}.withClass(bind.VolumeClassOf(v))
}

func (f facts) withClass(class string) facts {
	f.Class = cluster.Found(f.view.Classes, class)
	if d := bind.DefaultClass(f.Classes); d != nil {
		f.DefaultClass = d.Name
	}
	f.Driver = cluster.Found(f.view.Drivers, f.driverName())
	return f
}
