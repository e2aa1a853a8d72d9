package cluster

import (
	"cmp"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects looks up objects of one kind.
type Objects[T any] interface {
	// Get returns the object with the key "namespace/name", or "name" for kinds without namespaces.
	Get(key string) (T, bool)
	// By returns the objects with the value in an index, ordered by key. index.go names the
	// indexes.
	By(index, value string) []T
	// List returns all objects, ordered by key.
	List() []T
}

// Find returns the object with a key, or nil.
func Find[T any](in Objects[*T], key string) *T {
	o, _ := in.Get(key)
	return o
}

// First returns the first object of a list that matches, or nil.
func First[T any](all []*T, match func(*T) bool) *T {
	if i := slices.IndexFunc(all, match); i >= 0 {
		return all[i]
	}
	return nil
}

// View looks up the objects of a cluster. A kind is nil if no user of the View looks it up.
type View struct {
	Claims      Objects[*corev1.PersistentVolumeClaim]
	Volumes     Objects[*corev1.PersistentVolume]
	Classes     Objects[*storagev1.StorageClass]
	Drivers     Objects[*storagev1.CSIDriver]
	Attachments Objects[*storagev1.VolumeAttachment]
	Pods        Objects[*corev1.Pod]
	Nodes       Objects[*corev1.Node]
	CSINodes    Objects[*storagev1.CSINode]

	Snapshots        Objects[*snapshotv1.VolumeSnapshot]
	SnapshotContents Objects[*VolumeSnapshotContent]
	SnapshotClasses  Objects[*VolumeSnapshotClass]
	Groups           Objects[*groupv1.VolumeGroupSnapshot]
	GroupContents    Objects[*groupv1.VolumeGroupSnapshotContent]
	GroupClasses     Objects[*groupv1.VolumeGroupSnapshotClass]
}

// Key returns the key of an object: "namespace/name", or "name" for kinds without namespaces.
func Key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// ClaimOf returns the key of the claim that a volume is for, or "".
func ClaimOf(v *corev1.PersistentVolume) string {
	if v.Spec.ClaimRef == nil {
		return ""
	}
	return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
}

// HasDriver says whether a driver is registered on a node.
func HasDriver(n *storagev1.CSINode, driver string) bool {
	return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

// Compare orders objects by key.
func Compare[T metav1.Object](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// BoundCSI says whether a claim is bound to a volume, which is that of a CSI driver.
func BoundCSI(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) bool {
	return c.Status.Phase == corev1.ClaimBound && v != nil && v.Spec.CSI != nil && v.Spec.ClaimRef != nil &&
		v.Spec.ClaimRef.UID == c.UID
}
