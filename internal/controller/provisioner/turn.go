package provisioner

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// places is how many calls that make volumes, and how many that delete them, are
// under way at each driver at most; on behalf of one namespace half as many. What
// a driver cannot take it refuses, and is asked again later.
const places = 1000

// turn says when to look again at a claim if its plan's call has to wait for its
// turn; 0 is that it need not. To undo a creation is to make it once more, which
// hangs where that has hung: it takes no place of what only deletes.
func (p *provisioner) turn(plan provision.Plan) time.Duration {
	switch plan.Step {
	case provision.Record, provision.Create, provision.Undo:
	case provision.Finish, provision.Nothing:
		return 0
	}
	in := plan.Intent
	lane := controller.Lane{Driver: in.Driver, Call: "create", Namespace: in.Claim.Namespace}
	return p.Turn(controller.Key{Kind: kindClaim, Name: string(in.Claim.UID)}, lane,
		func(b volume.Because) { p.Events.Warn(&in.Claim, b) })
}

// turnToDelete is the same for a volume that is to be deleted.
func (p *provisioner) turnToDelete(v *corev1.PersistentVolume) time.Duration {
	lane := controller.Lane{Driver: provision.DeleterOf(v), Call: "delete"}
	if r := v.Spec.ClaimRef; r != nil {
		lane.Namespace = r.Namespace
	}
	return p.Turn(controller.Key{Kind: kindVolume, Name: v.Name}, lane, func(b volume.Because) { p.Events.Warn(v, b) })
}
