package scheduling

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// Facts are what a Pod without a node is judged with.
type Facts struct {
	View     cluster.View
	Warnings state.Warnings
}

// Unplaced returns why placement, or a cluster's scheduler, found no node for the Pod;
// false when it only waits for its claims, or nothing is known.
func Unplaced(p *corev1.Pod) (volume.Because, bool) {
	c := cluster.PodCondition(p, corev1.PodScheduled)
	if !cluster.IsFalse(c) || c.Reason == string(volume.ReasonWaitForBind) {
		return volume.Because{}, false
	}
	b := volume.Because{
		Reason: volume.ReasonFailedPlacing, Message: cmp.Or(c.Message, c.Reason),
		Cause: volume.CauseOf(p.Annotations[volume.AnnCauseScheduled], ""),
		Next:  cmp.Or(volume.ParseActor(p.Annotations[volume.AnnNextScheduled]), volume.User()),
	}
	if b.Cause.Reason == "" && strings.Contains(b.Message, wordsShort) {
		b.Cause.Reason = volume.ReasonNotEnoughStorage
	}
	b.Reason = cmp.Or(b.Cause.Reason, b.Reason)
	return b, true
}

// reported adds what the driver has reported about a class whose capacity is unknown.
func (f Facts) reported(b volume.Because) volume.Because {
	_, name, _ := strings.Cut(b.Object, "/")
	class := cluster.Find(f.View.Classes, name)
	if b.Reason != volume.ReasonCapacityUnknown || class == nil {
		return b
	}
	if e := f.Warnings.About(class.UID, b.Reason); e != nil {
		told := state.FromWarning(e, b.Next)
		b.Message, b.Next = b.Message+"; "+told.Message, told.Next
	}
	return b
}

// Homeless explains a Pod for which no node was found, and what to do if that is because
// a host's driver is missing.
func (f Facts) Homeless(p *corev1.Pod, b volume.Because) chain.Link {
	if b.Reason != volume.ReasonFailedPlacing {
		return chain.Broken("pod/"+p.Name, f.reported(b))
	}
	message, next := b.Message, b.Next
	for _, s := range drivers.OfPod(f.View, p) {
		elsewhere := s.Elsewhere()
		if elsewhere == "" || !drivers.IsLacking(f.View, s) {
			continue
		}
		if lacks, ok := drivers.Lacks(f.View, p, f.only()); ok {
			message, next = "0/1 nodes are available: "+lacks.Message, lacks.Next
			break
		}
		message += elsewhere
		next = volume.AnyAdministrator()
		break
	}
	return f.unschedulable(p, message, next)
}

// only returns the name of the only node; "" when there are more.
func (f Facts) only() string {
	if len(f.View.Nodes.List()) != 1 {
		return ""
	}
	return f.View.Nodes.List()[0].Name
}

// claim returns the volume and the class of a claim by its key; nil for what does not exist.
func (f Facts) claim(key string) (*corev1.PersistentVolume, *storagev1.StorageClass) {
	c := cluster.Find(f.View.Claims, key)
	if c == nil {
		return nil, nil
	}
	class, _ := bind.ClassOf(c)
	return cluster.Find(f.View.Volumes, c.Spec.VolumeName), cluster.Find(f.View.Classes, class)
}

// driverOf returns the driver of a claim's volume, or the one that is to make it; "" when that is not known.
func (f Facts) driverOf(key string) string {
	v, class := f.claim(key)
	switch {
	case v != nil && v.Spec.CSI != nil:
		return v.Spec.CSI.Driver
	case class != nil:
		return class.Provisioner
	}
	return ""
}
