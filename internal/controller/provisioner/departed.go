package provisioner

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
)

// unclaimed returns an error if the API server has a claim that names the volume that names it. It is asked unless this
// process has seen the very claim of the volume's reference go: then nobody has edited that reference, and whoever has
// made the claim anew since came too late to count on the volume.
func (p *provisioner) unclaimed(ctx context.Context, v *corev1.PersistentVolume) error {
	ref := v.Spec.ClaimRef
	if _, seen := p.departed.Load(ref.UID); seen {
		return nil
	}
	claim, err := p.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get claim of volume %s: %w", v.Name, err)
	case bind.Together(claim, v):
		return apierrors.NewConflict(corev1.Resource("persistentvolumeclaims"), claim.Name, nil)
	}
	return nil
}

// claimDeparts remembers that a claim was seen to go, as long as a volume refers to it.
func (p *provisioner) claimDeparts(c *corev1.PersistentVolumeClaim) {
	refers := func(v *corev1.PersistentVolume) bool { return provision.Owns(c.UID, v) }
	if !slices.ContainsFunc(p.volumes.By(cluster.VolumesByClaim, cluster.Key(c)), refers) {
		return
	}
	p.departed.Store(c.UID, nil)
	if !slices.ContainsFunc(p.volumes.By(cluster.VolumesByClaim, cluster.Key(c)), refers) {
		p.departed.Delete(c.UID) // the volume has gone meanwhile, so nobody else forgets the claim
	}
}

// forgetDeparted forgets the claim to which a volume does not refer any more; after is nil if the volume has gone.
func (p *provisioner) forgetDeparted(before, after *corev1.PersistentVolume) {
	if before == nil || before.Spec.ClaimRef == nil {
		return
	}
	if claim := before.Spec.ClaimRef.UID; after == nil || !provision.Owns(claim, after) {
		p.departed.Delete(claim)
	}
}

// enqueueUnclaimed queues the volumes that a claim does not name any more: while it named them, they were not deleted.
func (p *provisioner) enqueueUnclaimed(before, after *corev1.PersistentVolumeClaim) {
	if before == nil || after != nil && after.Spec.VolumeName == before.Spec.VolumeName {
		return
	}
	for _, v := range p.volumes.By(cluster.VolumesByClaim, cluster.Key(before)) {
		p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	}
}
