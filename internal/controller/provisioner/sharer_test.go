package provisioner

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestVolumeOfTwoObjects deletes a volume when the object that another user has of it is gone, not before.
func TestVolumeOfTwoObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := csitest.InMemory(t, driverConfig())
		api, _ := run(t, d)
		released, kept := plainVolume("a"), plainVolume("b")
		released.Status.Phase = corev1.VolumeReleased
		kept.Spec.CSI.VolumeHandle, kept.Finalizers = released.Spec.CSI.VolumeHandle, nil
		kept.Spec.PersistentVolumeReclaimPolicy, kept.Status.Phase = corev1.PersistentVolumeReclaimRetain, corev1.VolumeBound
		api.Put(kept)
		kubetest.Pass(time.Second)
		api.Put(released)
		kubetest.Pass(time.Hour)
		if slices.Contains(d.Methods(), "DeleteVolume") {
			t.Error("the volume of another object is deleted")
		}
		if err := api.CoreV1().PersistentVolumes().Delete(t.Context(), kept.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		kubetest.Pass(time.Minute)
		if !slices.Contains(d.Methods(), "DeleteVolume") {
			t.Error("the volume is not deleted when only its own object is left")
		}
	})
}
