package identity

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/queue"
)

// The Lease is renewed as often as a kubelet's, and lasts four heartbeats.
const (
	heartbeatEvery = 10 * time.Second
	leaseSeconds   = 40
)

// heartbeat renews the node's Lease until ctx ends, and calls turned before each try.
func (o *object) heartbeat(ctx context.Context, retryMin time.Duration, turned func()) {
	for failed := 0; ctx.Err() == nil; {
		turned()
		wait := heartbeatEvery
		// An API server that does not respond is no reason to wait forever.
		try, end := context.WithTimeout(ctx, leaseSeconds*time.Second)
		err := o.renew(try)
		end()
		if err == nil {
			failed = 0
		} else {
			wait = queue.Backoff{Min: retryMin, Max: heartbeatEvery}.Pause(failed)
			// A cluster that is being started may not have the namespace of leases yet.
			if failed++; failed > 3 && ctx.Err() == nil {
				o.log.Warn("lease of the node cannot be renewed, will be retried", "attempt", failed, "err", err)
			}
		}
		lifecycle.Sleep(ctx, wait)
	}
}

// renew writes the time into the Lease, and creates it if needed. The Lease belongs to the Node, as a kubelet's does;
// otherwise it would stay when the Node is gone, even one that was created without an owner or for an earlier Node.
func (o *object) renew(ctx context.Context) error {
	leases := o.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Get(ctx, o.name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if missing {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: o.name, Namespace: corev1.NamespaceNodeLease}}
	} else if err != nil {
		return fmt.Errorf("read lease of node %s: %w", o.name, err)
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &o.name, ptr.To[int32](leaseSeconds)
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	if owner := o.owner.Load(); owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if missing {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew lease of node %s: %w", o.name, err)
	}
	return nil
}
