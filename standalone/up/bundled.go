package up

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// ensureBundled creates the objects of the bundled driver if they do not exist. It
// keeps the changes of users; a deleted object is created again at the next start.
func ensureBundled(ctx context.Context, client kubernetes.Interface) error {
	if _, err := client.StorageV1().CSIDrivers().Create(ctx, bundledDriver(), metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSIDriver %s: %w", volume.LocalDriver, err)
	}
	if _, err := client.StorageV1().StorageClasses().Create(ctx, bundledClass(), metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create StorageClass %s: %w", volume.DefaultClass, err)
	}
	return nil
}

func bundledDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: volume.LocalDriver},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       ptr.To(true),
			PodInfoOnMount:       ptr.To(false),
			StorageCapacity:      ptr.To(true),
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// bundledClass binds late, because with several nodes the Pod decides where the volume
// must be reachable.
func bundledClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: volume.DefaultClass, Annotations: map[string]string{volume.AnnDefaultClass: "true"},
		},
		Provisioner:          volume.LocalDriver,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(true),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}
