package whytest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// AttributesRows are claims that request the attributes of another class.
func AttributesRows() []Row {
	wants := func(s *Scene, state corev1.PersistentVolumeClaimModifyVolumeStatus) {
		s.Claim.Spec.VolumeAttributesClassName = ptr.To("gold")
		s.Claim.Status.CurrentVolumeAttributesClassName = ptr.To("silver")
		if state != "" {
			s.Claim.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{
				Status: state, TargetVolumeAttributesClassName: "gold",
			}
		}
	}
	says := func(s *Scene, reason, message string) {
		s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
			Type: corev1.PersistentVolumeClaimVolumeModifyVolumeError, Status: corev1.ConditionTrue, Reason: reason,
			Message: message,
		}}
	}
	const begun = corev1.PersistentVolumeClaimModifyVolumeInProgress
	return []Row{
		{"nobody has begun", "pvc/data", func(s *Scene) { wants(s, "") }},
		{"the driver is asked", "pvc/data", func(s *Scene) { wants(s, begun) }},
		{"nobody calls the driver", "pvc/data", func(s *Scene) { wants(s, ""); s.NodeOnly() }},
		{"there is no such class", "pvc/data", func(s *Scene) {
			wants(s, corev1.PersistentVolumeClaimModifyVolumePending)
		}},
		{"the driver cannot change attributes, as an event says", "pvc/data", func(s *Scene) {
			wants(s, "")
			s.Warn("uid-data", volume.ReasonFailedModify, "driver d.example.com cannot change the attributes of volumes")
		}},
		{"the driver has failed", "pvc/data", func(s *Scene) { wants(s, begun); says(s, "Internal", "pool is full") }},
		{"the driver has refused for good", "pvc/data", func(s *Scene) {
			wants(s, corev1.PersistentVolumeClaimModifyVolumeInfeasible)
			says(s, "InvalidArgument", "no such level")
		}},
		{"the claim has changed its mind, and the driver may be at work", "pvc/data", func(s *Scene) {
			wants(s, begun)
			s.Claim.Spec.VolumeAttributesClassName = ptr.To("silver")
		}},
	}
}
