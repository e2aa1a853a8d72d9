package resizer

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/controller/story"
)

const driverName = "d.example"

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// claim is the scripts' claim of 1Gi that wants 2Gi.
func claim(t testing.TB) *corev1.PersistentVolumeClaim {
	t.Helper()
	return story.Object[*corev1.PersistentVolumeClaim](t, "claim")
}

func pv(t testing.TB, words string) *corev1.PersistentVolume {
	t.Helper()
	return story.Object[*corev1.PersistentVolume](t, "pv "+words)
}

// request is the call when the claim grows to 2Gi.
func request() *csipb.ControllerExpandVolumeRequest {
	return &csipb.ControllerExpandVolumeRequest{
		VolumeId: "h", Secrets: map[string]string{"key": "value"},
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 2 << 30},
		VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{
				Mount: &csipb.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}},
			},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
	}
}
