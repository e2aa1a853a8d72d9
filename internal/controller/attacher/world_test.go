package attacher

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/controller/story"
)

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	ours       = "external-attacher/d-example"
)

// pv is the object of the scripts, changed by these words.
func pv(t testing.TB, words string) *corev1.PersistentVolume {
	t.Helper()
	return story.Object[*corev1.PersistentVolume](t, "pv "+words)
}

func va(t testing.TB, words string) *storagev1.VolumeAttachment {
	t.Helper()
	return story.Object[*storagev1.VolumeAttachment](t, "va "+words)
}

func publishRequest() *csipb.ControllerPublishVolumeRequest {
	mount := &csipb.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: "h", NodeId: "id-n1", Secrets: map[string]string{"key": "value"},
		VolumeContext: map[string]string{"pool": "p"},
		VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{Mount: mount},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		},
	}
}

func unpublishRequest() *csipb.ControllerUnpublishVolumeRequest {
	return &csipb.ControllerUnpublishVolumeRequest{
		VolumeId: "h", NodeId: "id-n1", Secrets: map[string]string{"key": "value"},
	}
}
