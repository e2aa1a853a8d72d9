package upstream

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// ClaimOf returns a claim for 1Gi of a class.
func ClaimOf(name, class string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To(class), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}}
}

// SnapshotClasses is the resource of VolumeSnapshotClasses.
func SnapshotClasses() schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshotClasses,
	}
}

// SnapshotObject is a VolumeSnapshot.
type SnapshotObject = snapshotv1.VolumeSnapshot

// Typed returns a custom resource as its type.
func Typed[T any](o *unstructured.Unstructured) (*T, error) {
	out := new(T)
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
}

// Snapshots is the resource of VolumeSnapshots.
func Snapshots() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshots}
}

// SnapshotContents is the resource of VolumeSnapshotContents.
func SnapshotContents() schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshotContents,
	}
}

// Object returns a custom resource of the group of snapshots.
func Object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": volume.GroupSnapshot + "/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}
