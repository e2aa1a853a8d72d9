package protection

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/protect"
	"volplane.dev/volplane/internal/volume"
)

// watchClasses queues the VolumeAttributesClasses that need protection, and those that are named no more.
func (p *protection) watchClasses() {
	p.classes.Watch(func(_, c *storagev1.VolumeAttributesClass) {
		if c != nil && (c.DeletionTimestamp != nil || !slices.Contains(c.Finalizers, volume.FinalizerAttributesProtection)) {
			p.enqueueClasses(c.Name)
		}
	})
	p.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) {
		if before != nil {
			p.enqueueClasses(gone(cluster.AttributesOfClaim(before), after, cluster.AttributesOfClaim)...)
		}
	})
	p.volumes.Watch(func(before, after *corev1.PersistentVolume) {
		if before != nil {
			p.enqueueClasses(gone(cluster.AttributesOfVolume(before), after, cluster.AttributesOfVolume)...)
		}
	})
}

// gone returns the names that an object does not have any more; it is nil if it was deleted.
func gone[T comparable](names []string, after T, of func(T) []string) []string {
	var none T
	if len(names) == 0 || after == none {
		return names
	}
	left := of(after)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(left, name) })
}

func (p *protection) enqueueClasses(names ...string) {
	for _, name := range names {
		p.Add(controller.Key{Kind: kindClass, Name: name})
	}
}

func (p *protection) applyClass(ctx context.Context, name string) error {
	class, ok := p.classes.Get(name)
	if !ok {
		return nil
	}
	next, _ := protect.AttributesClass(class, p.claims.By(cluster.ClaimsByAttributes, name),
		p.volumes.By(cluster.VolumesByAttributes, name))
	if next == nil {
		return nil
	}
	_, err := p.classes.Update(ctx, next)
	return err
}
