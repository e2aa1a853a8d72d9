package resizer

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const driverName = "d.example"

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// claim is a claim of 1Gi that wants 2Gi.
func claim() *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "claim", UID: "c", Labels: map[string]string{"a": "b"},
		Finalizers: []string{"example.org/foreign"},
	}}
	c.Spec.VolumeName, c.Spec.Resources.Requests = "pv", storage("2Gi")
	c.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, Capacity: storage("1Gi"),
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: "example.org/Foreign", Status: corev1.ConditionTrue, Message: "theirs"},
		},
	}
	return c
}

// pv is the claim's volume.
func pv() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "v", Finalizers: []string{"example.org/foreign"}},
	}
	v.Spec.Capacity, v.Spec.AccessModes = storage("1Gi"), []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.MountOptions, v.Spec.PersistentVolumeReclaimPolicy = []string{"noatime"}, corev1.PersistentVolumeReclaimRetain
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "p"},
		ControllerExpandSecretRef: &corev1.SecretReference{Namespace: "ns", Name: "s"},
	}
	return v
}

func secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("value")},
	}
}

// request is what the driver is asked for when the claim is to grow to 2Gi.
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
