package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestGrowTo: a claim may be seen before the volume that was written before it.
func TestGrowTo(t *testing.T) {
	gib := func(size string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	for _, c := range []struct {
		argues         string
		volume, wanted string
		state          corev1.ClaimResourceStatus
		short          bool
		want           int64
	}{
		{"it is the node's turn", "2Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, false, 2 << 30},
		{"a driver may have given more", "3Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, false, 3 << 30},
		{"the volume is not seen yet", "1Gi", "2Gi", corev1.PersistentVolumeClaimNodeResizePending, false, 0},
		{"it is the controller's turn", "1Gi", "2Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, true, 0},
		{"nothing is to be done", "1Gi", "1Gi", "", false, 0},
		{"it came with the filesystem of a smaller volume", "1Gi", "1Gi", "", true, 1 << 30},
		{"which its driver cannot grow", "1Gi", "1Gi", corev1.PersistentVolumeClaimNodeResizeInfeasible, true, 0},
	} {
		pv, claim := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
		pv.Spec.Capacity, claim.Status.AllocatedResources = gib(c.volume), gib(c.wanted)
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
			corev1.ResourceStorage: c.state,
		}
		if got := growTo(pv, claim, c.short); got != c.want {
			t.Errorf("%s: %d, want %d", c.argues, got, c.want)
		}
	}
}
