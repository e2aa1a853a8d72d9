package snapshotter

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	handle     = "id-snapshot-u"
)

// content is the content of a snapshot that is to be taken of volume id-vol.
func content() *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "c", UID: "c", Finalizers: []string{foreign, volume.FinalizerContentBound}, Annotations: map[string]string{
				"a": "b", volume.AnnSnapshotParameters: `{"copies":"2"}`, volume.AnnSnapshotSecretName: "key",
				volume.AnnSnapshotSecretNamespace: "ns",
			},
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "u"}, Driver: driverName,
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: ptr.To("fast"),
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("id-vol")},
		},
	}
}

type contentState = map[string]func(*snapshotv1.VolumeSnapshotContent)

func contentStates() contentState {
	taken := func(ready bool) func(c *snapshotv1.VolumeSnapshotContent) {
		return func(c *snapshotv1.VolumeSnapshotContent) {
			c.Status = &snapshotv1.VolumeSnapshotContentStatus{
				SnapshotHandle: ptr.To(handle), ReadyToUse: &ready, CreationTime: ptr.To[int64](1e9),
				RestoreSize: ptr.To[int64](1 << 30),
			}
		}
	}
	return contentState{
		"intended": func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotCreating] = "yes" },
		"going":    func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotDeleting] = "yes" },
		"deleted":  func(c *snapshotv1.VolumeSnapshotContent) { c.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) },
		"taken":    taken(true),
		"pending":  taken(false),
		"retained": func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		},
		"named": func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotName] = "shot-u" },
		"loose": func(c *snapshotv1.VolumeSnapshotContent) { c.Finalizers = []string{foreign} },
		"bare":  func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil },
		"given": func(c *snapshotv1.VolumeSnapshotContent) {
			c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To("shot")}
		},
	}
}

func class() *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, Parameters: map[string]string{
			"copies": "2", "csi.storage.k8s.io/snapshotter-list-secret-name": "key",
			"csi.storage.k8s.io/snapshotter-list-secret-namespace": "ns",
		},
	}
}

func secret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"}, Data: map[string][]byte{"key": []byte("value")},
	}
}

// request is what the driver is asked for to take the snapshot.
func request() *csipb.CreateSnapshotRequest {
	return &csipb.CreateSnapshotRequest{
		Name: "snapshot-u", SourceVolumeId: "id-vol", Parameters: map[string]string{"copies": "2"},
		Secrets: map[string]string{"key": "value"},
	}
}
