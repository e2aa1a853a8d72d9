package provision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Copies says whether the intent makes a copy of that claim.
func (in *Intent) Copies(c *corev1.PersistentVolumeClaim) bool {
	return in.Source != "" && in.Claim.Namespace == c.Namespace && in.SourceName == c.Name
}

// Restores says whether the intent makes a volume from that snapshot.
func (in *Intent) Restores(namespace, name string) bool {
	return in.Snapshot != "" && in.Claim.Namespace == namespace && in.SourceName == name
}

// Protected returns the claim with the finalizer that keeps it while it is
// copied, or nil when it has it.
func Protected(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = append(c.Finalizers, volume.FinalizerCloning)
	return c
}

// Copied tells why a claim that is being deleted is kept by that finalizer, as far as
// the open intents are known.
func Copied(c *corev1.PersistentVolumeClaim, open []*Intent) volume.Because {
	b := volume.Because{
		Reason: volume.ReasonInUse, Message: "it stays until no copy of it is being made", Next: "provisioner",
	}
	if i := slices.IndexFunc(open, func(in *Intent) bool { return in.Copies(c) }); i >= 0 {
		b.Message, b.Next = "volume "+open[i].Name+" is being made as a copy of it", open[i].Driver
	}
	return b
}

// Released returns the claim without that finalizer, or nil when it is to stay:
// it goes no earlier than the claim is deleted, so that the next copy needs no
// write for it, and not while one of the open intents makes a copy.
func Released(c *corev1.PersistentVolumeClaim, open []*Intent) *corev1.PersistentVolumeClaim {
	if c.DeletionTimestamp == nil || !slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	if slices.ContainsFunc(open, func(in *Intent) bool { return in.Copies(c) }) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = without(c.Finalizers, volume.FinalizerCloning)
	return c
}
