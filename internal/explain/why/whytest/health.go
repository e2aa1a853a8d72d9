package whytest

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// HealthRows are volumes and storages that are not well.
func HealthRows() []Row {
	return []Row{
		{"a Pod with a volume that is ill and cannot be mounted", "pod/web", func(s *Scene) {
			s.Ill()
			c := &s.Pod.Status.Conditions[0]
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, string(volume.ReasonFailedMount), "no such disk"
			s.Next(volume.Administrator("n1"))
		}},
		{"a kubelet tells that a volume is ill", "pvc/data", func(s *Scene) {
			s.Pod.Status.Conditions = nil
			s.Pod.Status.VolumeHealth = []corev1.PodVolumeHealth{
				{Name: "gone"}, {Name: s.Pod.Spec.Volumes[0].Name, HealthConditions: illness()},
			}
		}},
		{"a Pod whose volume the driver calls ill, and which cannot be mounted", "pod/web", func(s *Scene) {
			s.Ill()
			c := &s.Pod.Status.Conditions[0]
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, string(volume.ReasonFailedMount), "no such disk"
			s.Pod.Status.VolumeHealth = []corev1.PodVolumeHealth{
				{Name: s.Pod.Spec.Volumes[0].Name, HealthConditions: illness()},
			}
		}},
		{"a Pod with a volume that was ill", "pod/web", func(s *Scene) {
			s.Pod.Status.VolumeHealth = []corev1.PodVolumeHealth{{Name: s.Pod.Spec.Volumes[0].Name}}
		}},
		{"the driver's controller tells that a volume is ill", "pod/web", func(s *Scene) {
			s.Claim.Status.HealthStatus = &corev1.VolumeHealthStatus{HealthConditions: illness()}
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "no such disk")
		}},
		{"the storage is ill, seen from the node", "pvc/data", func(s *Scene) {
			s.StorageIll(corev1.PersistentVolumeFilesystem)
		}},
		{"the storage was ill before the node went down", "pvc/data", func(s *Scene) {
			s.StorageIll(corev1.PersistentVolumeFilesystem)
			s.Pod.Status.VolumeHealth = []corev1.PodVolumeHealth{
				{Name: s.Pod.Spec.Volumes[0].Name, HealthConditions: illness()},
			}
			s.Down()
		}},
		{"the storage is ill for block devices", "pvc/data", func(s *Scene) { s.StorageIll(corev1.PersistentVolumeBlock) }},
	}
}

// illness is what a driver reports about a volume.
func illness() []corev1.VolumeHealthCondition {
	return []corev1.VolumeHealthCondition{
		{Status: corev1.VolumeHealthInaccessible, Reason: "NoPath", Message: "all paths are gone"},
		{Status: corev1.VolumeHealthDegraded, Reason: "Slow"},
	}
}

// StorageIll has the driver report that its storage is unhealthy on n1 for volumes of a mode.
func (s *Scene) StorageIll(mode corev1.PersistentVolumeMode) {
	s.CSI1.Status.StorageHealth = []storagev1.StorageHealth{
		{Name: "other.example.com", HealthConditions: []storagev1.StorageHealthCondition{{Status: "Other"}}},
		{Name: Driver, HealthConditions: []storagev1.StorageHealthCondition{{
			Status: storagev1.StorageUnreachable, Reason: "NoPath", Message: "all paths are gone", VolumeMode: &mode,
		}}},
	}
}
