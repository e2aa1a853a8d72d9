package provision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// Copies says whether the intent creates a clone of a claim.
func (in *Intent) Copies(c *corev1.PersistentVolumeClaim) bool {
	return in.Source != "" && in.Claim.Namespace == c.Namespace && in.SourceName == c.Name
}

// Restores says whether the intent creates a volume from a snapshot.
func (in *Intent) Restores(namespace, name string) bool {
	return in.Snapshot != "" && in.Claim.Namespace == namespace && in.SourceName == name
}

// Protected returns the claim with the finalizer that keeps it while it is being cloned, or nil if
// it has the finalizer.
func Protected(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = append(c.Finalizers, volume.FinalizerCloning)
	return c
}

// Copied explains why the finalizer keeps a claim that is being deleted. open are the intents that
// are known, perhaps none.
func Copied(c *corev1.PersistentVolumeClaim, open []*Intent) volume.Because {
	b := volume.Say(volume.ReasonInUse, volume.Controller("provisioner"), "it stays until no copy of it is being made")
	if i := slices.IndexFunc(open, func(in *Intent) bool { return in.Copies(c) }); i >= 0 {
		b.Message, b.Next = "volume "+open[i].Name+" is being made as a copy of it", volume.Driver(open[i].Driver)
	}
	return b
}

// Released returns the claim without the finalizer, or nil. The finalizer stays until the claim is
// deleted, which saves a write for the next clone, and while one of the open intents creates a clone.
func Released(c *corev1.PersistentVolumeClaim, open []*Intent) *corev1.PersistentVolumeClaim {
	if c.DeletionTimestamp == nil || !slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	if slices.ContainsFunc(open, func(in *Intent) bool { return in.Copies(c) }) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerCloning)
	return c
}
