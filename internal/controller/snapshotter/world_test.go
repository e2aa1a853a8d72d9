package snapshotter

import (
	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "d.example"
	foreign    = "example.org/foreign"
	handle     = "id-snapshot-u"
)

// content is the content of a snapshot that is to be taken of volume id-vol.
func content() *cluster.VolumeSnapshotContent {
	return &cluster.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "c", UID: "c", Finalizers: []string{foreign, volume.FinalizerContentBound}, Annotations: map[string]string{
				"a": "b", volume.AnnSnapshotParameters: `{"copies":"2"}`, volume.AnnSnapshotSecretName: "key",
				volume.AnnSnapshotSecretNamespace: "ns",
			},
		},
		Spec: cluster.VolumeSnapshotContentSpec{VolumeSnapshotContentSpec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "u"}, Driver: driverName,
			DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeSnapshotClassName: ptr.To("fast"),
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("id-vol")},
		}},
	}
}

type contentState = map[string]func(*cluster.VolumeSnapshotContent)

func contentStates() contentState {
	taken := func(ready bool) func(c *cluster.VolumeSnapshotContent) {
		return func(c *cluster.VolumeSnapshotContent) {
			c.Status = &snapshotv1.VolumeSnapshotContentStatus{
				SnapshotHandle: ptr.To(handle), ReadyToUse: &ready, CreationTime: ptr.To[int64](1e9),
				RestoreSize: ptr.To[int64](1 << 30),
			}
		}
	}
	return contentState{
		"intended": func(c *cluster.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotCreating] = "yes" },
		"going":    func(c *cluster.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotDeleting] = "yes" },
		"deleted":  func(c *cluster.VolumeSnapshotContent) { c.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) },
		"taken":    taken(true),
		"pending":  taken(false),
		"retained": func(c *cluster.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		},
		"named":  func(c *cluster.VolumeSnapshotContent) { c.Annotations[volume.AnnSnapshotName] = "shot-u" },
		"loose":  func(c *cluster.VolumeSnapshotContent) { c.Finalizers = []string{foreign} },
		"bare":   func(c *cluster.VolumeSnapshotContent) { c.Annotations = nil },
		"placed": func(c *cluster.VolumeSnapshotContent) { c.Spec.NodeAffinity = zones("b") },
		"given": func(c *cluster.VolumeSnapshotContent) {
			c.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To("shot")}
		},
	}
}

func class() *cluster.VolumeSnapshotClass {
	return &cluster.VolumeSnapshotClass{VolumeSnapshotClass: snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driverName, Parameters: map[string]string{
			"copies": "2", "csi.storage.k8s.io/snapshotter-list-secret-name": "key",
			"csi.storage.k8s.io/snapshotter-list-secret-namespace": "ns",
		},
	}}
}

func classStates() map[string]func(*cluster.VolumeSnapshotClass) {
	return map[string]func(*cluster.VolumeSnapshotClass){
		"zoned": func(c *cluster.VolumeSnapshotClass) { c.AllowedTopologies = zones("b", "c") },
	}
}

func zones(all ...string) []corev1.TopologySelectorTerm {
	return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
		{Key: "topology.test/zone", Values: all},
	}}}
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
