package apiserver_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
)

// TestCapacitiesAreServed: CSIStorageCapacities can be created and updated, but not moved to another class or topology.
func TestCapacitiesAreServed(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	ctx, all := t.Context(), standalonetest.Client(t, s, "").StorageV1().CSIStorageCapacities(volume.NamespaceSystem)
	o, err := all.Create(ctx, &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: "csisc-1"}, StorageClassName: "fast",
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}},
		Capacity:     ptr.To(resource.MustParse("10Gi")),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Capacity, o.MaximumVolumeSize = ptr.To(resource.MustParse("9Gi")), ptr.To(resource.MustParse("1Gi"))
	if o, err = all.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.StorageClassName = "slow"
	if _, err := all.Update(ctx, o, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("another class: %v, want invalid", err)
	}
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Capacity.String() != "9Gi" ||
		list.Items[0].MaximumVolumeSize.String() != "1Gi" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := all.Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestDeletionWaitsForNoCollector: kubectl delete --cascade=orphan and foreground leave nothing that no garbage
// collector would remove.
func TestDeletionWaitsForNoCollector(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	claims, ctx := standalonetest.Client(t, s, "").CoreV1().PersistentVolumeClaims("default"), t.Context()
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground, metav1.DeletePropagationBackground,
	} {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				},
			},
		}
		if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The protection of claims is a controller's turn, which does not run here.
		if _, err := claims.Patch(ctx, "data", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := claims.Delete(ctx, "data", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
		if left, err := claims.Get(ctx, "data", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Fatalf("deleted with policy %s: %v with finalizers %v", policy, err, left.Finalizers)
		}
	}
}
