package modifier

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

const driverName = "d.example"

// claim is a claim of class silver that asks for gold.
func claim() *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "claim", UID: "c", Finalizers: []string{"example.org/foreign"},
	}}
	c.Spec.VolumeName, c.Spec.VolumeAttributesClassName = "pv", ptr.To("gold")
	c.Status = corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, CurrentVolumeAttributesClassName: ptr.To("silver"),
		Conditions: []corev1.PersistentVolumeClaimCondition{
			{Type: "example.org/Foreign", Status: corev1.ConditionTrue, Message: "theirs"},
		},
	}
	return c
}

// pv is the claim's volume.
func pv() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv", UID: "v", Annotations: map[string]string{
			volume.AnnModifySecretName: "s", volume.AnnModifySecretNamespace: "ns",
		},
	}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.VolumeAttributesClassName = ptr.To("silver")
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h",
		ControllerExpandSecretRef: &corev1.SecretReference{Namespace: "ns", Name: "other"},
	}
	return v
}

// class is a class of the driver, with its name as its parameter.
func class(name string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driverName, Parameters: map[string]string{"level": name},
	}
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Data:       map[string][]byte{"key": []byte("value of " + name)},
	}
}

// request is what the driver is asked for when the volume is to get class gold.
func request() *csipb.ControllerModifyVolumeRequest {
	return &csipb.ControllerModifyVolumeRequest{
		VolumeId: "h", Secrets: map[string]string{"key": "value of s"}, MutableParameters: map[string]string{"level": "gold"},
	}
}
