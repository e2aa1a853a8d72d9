package provisioner

import (
	"context"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// TestWholeVolume: nothing of what the class, the claim and the driver say is
// missing on the volume that is made.
func TestWholeVolume(t *testing.T) {
	c := claim("c")
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}
	w := newWorld(t, func(d *driver) {
		d.answer = func(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
				VolumeId: "id-" + r.GetName(), CapacityBytes: 2 << 30, VolumeContext: map[string]string{"pool": "p"},
			}}, nil
		}
	}, c)
	w.saved("pvc-u-c")
	want := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-u-c", Finalizers: []string{volume.FinalizerVolumeProtection, volume.FinalizerProvisioner},
		Annotations: map[string]string{volume.AnnProvisionedBy: driverName},
	}}
	want.Spec = corev1.PersistentVolumeSpec{
		StorageClassName: "fast", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		AccessModes: c.Spec.AccessModes,
		VolumeMode:  ptr.To(corev1.PersistentVolumeFilesystem),
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
		ClaimRef: &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "c", UID: "u-c", ResourceVersion: "1",
		},
	}
	want.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "id-pvc-u-c", VolumeAttributes: map[string]string{"pool": "p"},
	}
	w.client.Is(want)
}
