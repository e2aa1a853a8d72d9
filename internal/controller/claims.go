package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
)

// claimPlaces is the number of calls that may be in flight at each driver; one namespace may have half of them.
const claimPlaces = 20

// ClaimController is a controller that calls drivers to change the volumes of claims: the resizer or the modifier.
type ClaimController struct {
	Env
	*Controller
	Refusals *Refusals
	Drivers  *csi.Set
	Claims   kube.Writer[*corev1.PersistentVolumeClaim]
	Volumes  kube.Writer[*corev1.PersistentVolume]
}

// NewClaimController returns a controller without Reconcile. A claim is queued when a volume is bound to it.
func NewClaimController(env Env, d Declaration, drivers *csi.Set) ClaimController {
	c := ClaimController{
		Env: env, Refusals: NewRefusals(), Drivers: drivers,
		Controller: &Controller{
			Declaration: d, Workers: 10, Places: claimPlaces, RetryMin: 100 * time.Millisecond, Pace: env.Pace, Log: env.Log,
		},
		Claims: env.Caches.WriteClaims(env.Client), Volumes: env.Caches.WriteVolumes(env.Client),
	}
	c.Volumes.Watch(func(before, v *corev1.PersistentVolume) {
		if v != nil && v.Spec.ClaimRef != nil && (before == nil || before.Spec.ClaimRef == nil) {
			c.Add(claimKey(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name))
		}
	})
	return c
}

func claimKey(namespace, name string) Key {
	return Key{Kind: "claim", Namespace: namespace, Name: name}
}

// Enqueue queues a claim.
func (c ClaimController) Enqueue(claim *corev1.PersistentVolumeClaim) {
	c.Add(claimKey(claim.Namespace, claim.Name))
}

// Tried returns the try of a failed call for a claim; it is empty if the call is not repeated.
func (c ClaimController) Tried(claim *corev1.PersistentVolumeClaim, repeat bool) retry.Try {
	if !repeat {
		return retry.Try{}
	}
	return c.Try(claimKey(claim.Namespace, claim.Name))
}

// Write writes the objects of a decision, each of which may be nil, and returns the newest version of the claim.
func (c ClaimController) Write(
	ctx context.Context, claim, newClaim *corev1.PersistentVolumeClaim, v, newVolume *corev1.PersistentVolume,
) (*corev1.PersistentVolumeClaim, error) {
	if newVolume != nil {
		if _, err := c.Volumes.Change(ctx, v, newVolume); err != nil {
			return nil, err
		}
	}
	if newClaim == nil {
		return claim, nil
	}
	return c.Claims.Change(ctx, claim, newClaim, "status")
}
