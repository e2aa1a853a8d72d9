package bind

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// ClassOf returns the name of a claim's class, and whether the claim has a name of a class: the
// empty name means no class, and a missing name means the default class.
func ClassOf(claim *corev1.PersistentVolumeClaim) (name string, named bool) {
	if n, ok := claim.Annotations[volume.AnnBetaStorageClass]; ok {
		return n, true
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName, true
	}
	return "", false
}

// VolumeClassOf returns the name of a volume's class.
func VolumeClassOf(v *corev1.PersistentVolume) string {
	if n, ok := v.Annotations[volume.AnnBetaStorageClass]; ok {
		return n
	}
	return v.Spec.StorageClassName
}

// DefaultClass returns the newest class that is marked as the default, or nil. Of several with the
// same age it returns the first by name.
func DefaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var best *storagev1.StorageClass
	for _, c := range classes {
		if c.Annotations[volume.AnnDefaultClass] != "true" && c.Annotations[volume.AnnBetaDefaultClass] != "true" {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&c.CreationTimestamp) ||
			best.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < best.Name {
			best = c
		}
	}
	return best
}

// BindsLate says whether a class has the binding mode WaitForFirstConsumer.
func BindsLate(c *storagev1.StorageClass) bool {
	return c != nil && c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}
