package reports

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// make creates what each script has.
func (w *onePlane) make(name, driver string) error {
	ctx, create := w.t.Context(), metav1.CreateOptions{}
	class := func(name string, binds storagev1.VolumeBindingMode) error {
		_, err := w.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver,
			VolumeBindingMode: &binds, AllowVolumeExpansion: ptr.To(true),
		}, create)
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := w.client.CoreV1().Namespaces().Create(ctx, space, create)
	return errors.Join(err, class("now-"+name, storagev1.VolumeBindingImmediate),
		class("late-"+name, storagev1.VolumeBindingWaitForFirstConsumer))
}
