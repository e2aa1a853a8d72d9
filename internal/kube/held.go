package kube

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// ErrHeld says that nothing is unmounted, detached or deleted until an administrator has agreed.
var ErrHeld = errors.New("nothing is unmounted, detached or deleted")

// CheckHeld fails with ErrHeld after the API was restored from a backup, or its store was replaced by an older one,
// until an administrator accepts that unknown volumes may be removed. It reads the API, because a cache may be older
// than the restore.
func CheckHeld(ctx context.Context, client kubernetes.Interface) error {
	maps := client.CoreV1().ConfigMaps(volume.NamespaceSystem)
	restored, err := maps.Get(ctx, volume.ConfigRestored, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whether the API was restored from a backup: %w", err)
	}
	return fmt.Errorf("%w: %s, and what was created since may be in use; check volplane orphans and the Pods, then run "+
		"volplane restore --accept", ErrHeld, Restored(restored))
}

// CheckHeldBeside returns CheckHeld for a process that includes the API server. Only a start of the server can cause
// such a hold, so the API is not asked again once there is none.
func CheckHeldBeside(client kubernetes.Interface) func(ctx context.Context) error {
	var free atomic.Bool
	return func(ctx context.Context) error {
		if free.Load() {
			return nil
		}
		err := CheckHeld(ctx, client)
		if err == nil {
			free.Store(true)
		}
		return err
	}
}

// Restored describes the restore that its ConfigMap records.
func Restored(o *corev1.ConfigMap) string {
	if at := o.Data[volume.RestoredLacks]; at != "" {
		return fmt.Sprintf("an older etcd, or another one, was put in the place of the one of %.40q", at)
	}
	return fmt.Sprintf("the API was restored from a backup of %.40q", o.Data[volume.RestoredMade])
}
