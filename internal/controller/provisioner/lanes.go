package provisioner

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// places is the number of create calls, and of delete calls, that may be in flight at each driver;
// one namespace may have half of them. A driver may refuse calls that are too many for it; they are
// repeated with back-off.
const places = 1000

// enterCreateLane enters the lane of the plan's call, if it has one; see Controller.Enter. Undo is
// in the same lane, because it calls CreateVolume again, which may hang as the first call did; so
// it must not take places of deletions.
func (p *provisioner) enterCreateLane(plan provision.Plan) time.Duration {
	switch plan.Step {
	case provision.Record, provision.Create, provision.Undo:
	default:
		return 0 // a step without such a call, or one that is not known, which apply refuses
	}
	in := plan.Intent
	lane := controller.Lane{Driver: in.Driver, Call: "create", Namespace: in.Claim.Namespace}
	return p.Enter(controller.Key{Kind: kindClaim, Name: string(in.Claim.UID)}, lane,
		func(b volume.Because) { p.Events.Warn(&in.Claim, b) })
}

// enterDeleteLane enters the lane of a call of DeleteVolume; see Controller.Enter.
func (p *provisioner) enterDeleteLane(v *corev1.PersistentVolume) time.Duration {
	lane := controller.Lane{Driver: provision.DeleterOf(v), Call: "delete"}
	if r := v.Spec.ClaimRef; r != nil {
		lane.Namespace = r.Namespace
	}
	return p.Enter(controller.Key{Kind: kindVolume, Name: v.Name}, lane, func(b volume.Because) { p.Events.Warn(v, b) })
}
