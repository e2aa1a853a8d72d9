package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
)

// Claims is what the controllers share that have drivers change the volumes of claims: the resizer and the modifier.
type Claims struct {
	Env
	*Controller
	Refusals *Refusals
	Drivers  *csi.Set
	Writer   kube.Writer[*corev1.PersistentVolumeClaim]
	Volumes  kube.Writer[*corev1.PersistentVolume]
}

// NewClaims returns what such a controller needs; places is the number of calls that may be in flight at each driver,
// of which one namespace may have half. It queues a claim when a volume is bound to it.
func NewClaims(env Env, d Declaration, drivers *csi.Set, places int) Claims {
	c := Claims{
		Env: env, Refusals: NewRefusals(), Drivers: drivers,
		Controller: &Controller{
			Declaration: d, Workers: 10, Places: places, RetryMin: 100 * time.Millisecond, Pace: env.Pace, Log: env.Log,
		},
		Writer: env.Caches.WriteClaims(env.Client), Volumes: env.Caches.WriteVolumes(env.Client),
	}
	c.Volumes.Watch(func(before, v *corev1.PersistentVolume) {
		if v != nil && v.Spec.ClaimRef != nil && (before == nil || before.Spec.ClaimRef == nil) {
			c.Add(Key{Kind: "claim", Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name})
		}
	})
	return c
}

// KeyOf returns the key of a claim.
func (Claims) KeyOf(c *corev1.PersistentVolumeClaim) Key {
	return Key{Kind: "claim", Namespace: c.Namespace, Name: c.Name}
}

// Tried returns the try of a failed call for a claim; it is empty if the call is not repeated.
func (c Claims) Tried(claim *corev1.PersistentVolumeClaim, repeat bool) retry.Try {
	if !repeat {
		return retry.Try{}
	}
	return c.Try(c.KeyOf(claim))
}

// Write writes the objects that were decided, of which each may be nil, and returns the newest version of the claim.
func (c Claims) Write(
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
	return c.Writer.Change(ctx, claim, newClaim, "status")
}
