package whytest

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// GrowthRows are claims that request more than their capacity.
func GrowthRows() []Row {
	return []Row{
		{"the driver grows the volume", "pvc/data", func(s *Scene) { s.Wants("2Gi") }},
		{"the driver refuses for now", "pvc/data", func(s *Scene) {
			s.Wants("2Gi")
			s.Warn("uid-data", volume.ReasonFailedResize, "pool is full")
		}},
		{"a class that forbids it by now does not end what was asked for", "pvc/data", func(s *Scene) {
			s.Wants("2Gi")
			s.Class.AllowVolumeExpansion = nil
		}},
		{"the driver cannot", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimControllerResizeInfeasible)
		}},
		{"the driver cannot, as the claim says", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimControllerResizeInfeasible)
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: "OutOfRange: too large"},
			}
		}},
		{"the driver has not grown it yet, as the claim says when no event is left", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimControllerResizeInProgress)
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimControllerResizeError, Message: "Internal: pool is full"},
			}
		}},
		{"a resizer that says by a condition alone that it is the node's turn", "pvc/data", func(s *Scene) {
			s.Wants("2Gi")
			s.Volume.Spec.Capacity = s.Claim.Spec.Resources.Requests
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue},
			}
		}},
		{"and the filesystem does not grow", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimNodeResizePending)
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimNodeResizeError, Message: "Internal: no room"},
			}
		}},
		{"the file system grows", "pvc/data", func(s *Scene) { s.Resizing(corev1.PersistentVolumeClaimNodeResizePending) }},
		{"the file system does not grow", "pvc/data", func(s *Scene) {
			s.NodeGrowth("NodeExpandVolume by driver d: Internal: no room")
		}},
		{"the file system would grow if somebody mounted it", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimNodeResizePending)
			s.All.Pods, s.All.Attachments = nil, nil
		}},
		{"the file system cannot", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimNodeResizeInfeasible)
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimNodeResizeError, Message: "resize2fs: bad magic number"},
			}
		}},
		{"the driver says by event that it cannot", "pvc/data", func(s *Scene) {
			s.Resizing(corev1.PersistentVolumeClaimNodeResizeInfeasible)
			s.Warn("uid-data", volume.ReasonFailedNodeResize, "NodeExpandVolume by driver d: OutOfRange: too large")
		}},
	}
}
