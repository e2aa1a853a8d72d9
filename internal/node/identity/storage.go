package identity

import (
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"volplane.dev/volplane/internal/decide/health"
)

// SetStorageHealth writes what a driver reports about its storage to the CSINode. The next poll reports it again, so a
// failure needs no other retry.
func (n *Node) SetStorageHealth(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) {
	if err := n.object.setStorage(ctx, driver, conditions); err != nil && ctx.Err() == nil {
		n.Log.Warn("health of a driver's storage cannot be written, will be retried", "driver", driver, "err", err)
	}
}

// setStorage writes what a registered driver reports about its storage; for an unregistered driver it writes nothing.
func (o *object) setStorage(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(conditions) == 0 && o.well[driver] {
		return nil
	}
	delete(o.well, driver)
	err := o.writeStorage(ctx, driver, func(c *storagev1.CSINode) []storagev1.StorageHealthCondition {
		if slices.ContainsFunc(c.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver }) {
			return conditions
		}
		return nil
	})
	if err == nil && len(conditions) == 0 {
		o.well[driver] = true
	}
	return err
}

// forgetStorage removes what a driver has reported. mu is held.
func (o *object) forgetStorage(ctx context.Context, driver string) error {
	delete(o.well, driver)
	return o.writeStorage(ctx, driver, func(*storagev1.CSINode) []storagev1.StorageHealthCondition { return nil })
}

// writeStorage writes a driver's entry. It does not fail for a server that does not serve these entries: one of an
// older version, or with the feature turned off, which is the default of Kubernetes. mu is held.
func (o *object) writeStorage(
	ctx context.Context, driver string, of func(*storagev1.CSINode) []storagev1.StorageHealthCondition,
) error {
	all := o.client.StorageV1().CSINodes()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c, err := all.Get(ctx, o.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		after, changed := health.OfNode(c.Status.StorageHealth, driver, of(c), metav1.Now())
		if !changed {
			return nil
		}
		c = c.DeepCopy()
		c.Status.StorageHealth = after
		_, err = all.UpdateStatus(ctx, c, metav1.UpdateOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err):
		o.log.Debug("API server does not serve the health of storage", "driver", driver, "err", err)
	case err != nil:
		return fmt.Errorf("write storage health of driver %s to CSINode %s: %w", driver, o.name, err)
	}
	return nil
}
