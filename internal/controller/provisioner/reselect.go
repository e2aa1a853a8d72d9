package provisioner

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/provision"
)

// reschedule removes the selected node from a claim, so that the scheduler selects another one.
func (p *provisioner) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.claims.Update(ctx, provision.Unselected(claim))
	return err
}

// reselect does so for a claim whose volume the driver there could not make. Placement, if it is volplane's, selects
// the node again only if no other one is possible.
func (p *provisioner) reselect(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !p.Selects {
		return p.reschedule(ctx, claim)
	}
	_, err := p.claims.Update(ctx, provision.Refused(claim))
	return err
}
