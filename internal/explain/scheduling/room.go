package scheduling

import (
	"cmp"

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
func Unplaced(p *corev1.Pod) (string, bool) {
	c := cluster.PodCondition(p, corev1.PodScheduled)
	if !cluster.IsFalse(c) || c.Reason == string(volume.ReasonWaitForBind) {
		return "", false
	}
	return cmp.Or(c.Message, c.Reason), true
}

// roomless explains a Pod for which no node had enough storage. If the capacity is
// unknown, the driver may have reported why.
func (f Facts) roomless(p *corev1.Pod, message string, unknown bool) chain.Link {
	l := chain.New("pod/"+p.Name, chain.Problem, volume.ReasonNotEnoughStorage, message, volume.User())
	if !unknown {
		return l
	}
	l.Because.Reason = volume.ReasonCapacityUnknown
	for _, name := range cluster.ClaimNames(p) {
		claim, _, class := f.claim(p.Namespace + "/" + name)
		if claim == nil || claim.Spec.VolumeName != "" || class == nil {
			continue
		}
		l.Because.Next = volume.Driver(class.Provisioner)
		if e := f.Warnings.About(class.UID, volume.ReasonCapacityUnknown); e != nil {
			told := state.Told(e, l.Because.Next)
			l.Because.Message, l.Because.Next = message+"; "+told.Message, told.Next
		}
		break
	}
	return l
}

// Homeless explains a Pod for which no node was found, and what to do if that is because
// a host's driver is missing.
func (f Facts) Homeless(p *corev1.Pod, message string) chain.Link {
	if short, unknown := isShort(message); short {
		return f.roomless(p, message, unknown)
	}
	next := volume.User()
	for _, s := range drivers.OfPod(f.View, p) {
		elsewhere := s.Elsewhere()
		if elsewhere == "" || !drivers.IsLacking(f.View, s) {
			continue
		}
		if b, ok := drivers.Lacks(f.View, p, f.only()); ok {
			message, next = "0/1 nodes are available: "+b.Message, b.Next
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

// claim returns a claim by its key, with its volume and its class, as far as there are any.
func (f Facts) claim(key string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, *storagev1.StorageClass) {
	c := cluster.Find(f.View.Claims, key)
	if c == nil {
		return nil, nil, nil
	}
	class, _ := bind.ClassOf(c)
	return c, cluster.Find(f.View.Volumes, c.Spec.VolumeName), cluster.Find(f.View.Classes, class)
}

// driverOf returns the driver of a claim's volume, or the one that is to make it; "" when that is not known.
func (f Facts) driverOf(key string) string {
	_, v, class := f.claim(key)
	switch {
	case v != nil && v.Spec.CSI != nil:
		return v.Spec.CSI.Driver
	case class != nil:
		return class.Provisioner
	}
	return ""
}
