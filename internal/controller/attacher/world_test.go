package attacher

import (
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	ours       = "external-attacher/d-example"
	detachNote = `{"handle":"h","secret":{"name":"s","namespace":"ns"}}`
)

func secretRef() *corev1.SecretReference { return &corev1.SecretReference{Name: "s", Namespace: "ns"} }

func secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, Data: map[string][]byte{"key": []byte("value")},
	}
}

func pv(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv", UID: "pv-uid", Finalizers: []string{foreign}, Labels: map[string]string{"a": "b"},
	}}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v.Spec.MountOptions = []string{"noatime"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: "h", FSType: "xfs", VolumeAttributes: map[string]string{"pool": "p"},
		ControllerPublishSecretRef: secretRef(),
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func va(change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	name := "pv"
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: "va", UID: "va-uid", Finalizers: []string{foreign}, Annotations: map[string]string{"a": "b"},
		},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// recorded is an attachment after the driver may have been called.
func recorded(a *storagev1.VolumeAttachment) {
	a.Finalizers = append(a.Finalizers, ours)
	a.Annotations[volume.AnnNodeID], a.Annotations[volume.AnnDetach] = "id-n1", detachNote
}

func attached(a *storagev1.VolumeAttachment) {
	a.Status.Attached, a.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/x"}
}

func going(a *storagev1.VolumeAttachment) {
	a.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

// kept is a volume object that waits for its detach.
func kept(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, ours) }

func dying(v *corev1.PersistentVolume) { v.DeletionTimestamp = va(going).DeletionTimestamp }

func csiNode() *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{
		{Name: "other.example", NodeID: "wrong"}, {Name: driverName, NodeID: "id-n1"},
	}
	return n
}

func node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}} }

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
