package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// Refusals remembers facts about claims that no object has: what the last call was refused for, and until when a
// permanent refusal is left alone. Without it, as after a restart, a controller assumes that a call is in progress, or
// repeats it.
type Refusals struct {
	mu      sync.Mutex
	refused map[types.UID]string
	pauses  map[types.UID]pause
}

// pause belongs to one refused request: another request starts another pause.
type pause struct {
	what  string
	until time.Time
}

// NewRefusals returns an empty memory.
func NewRefusals() *Refusals {
	return &Refusals{refused: map[types.UID]string{}, pauses: map[types.UID]pause{}}
}

// Record records whether the last call for a claim was refused, and for what. Every other end of a call cancels an
// earlier refusal, because that call may have taken effect.
func (r *Refusals) Record(claim types.UID, what string, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, claim)
	if refused {
		r.refused[claim] = what
	}
}

// Has says whether the last call for a claim was refused for this.
func (r *Refusals) Has(claim types.UID, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, refused := r.refused[claim]
	return refused && of == what
}

// Pause returns how long a claim is left alone because of a permanent refusal. The first call starts the pause.
func (r *Refusals) Pause(claim types.UID, what string, length time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, now := r.pauses[claim], time.Now()
	if p.what != what {
		p = pause{what: what, until: now.Add(length)}
		r.pauses[claim] = p
	}
	return max(0, p.until.Sub(now))
}

// Forget forgets a claim.
func (r *Refusals) Forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, claim)
	delete(r.pauses, claim)
}

// Requests holds the binder's requests to create volumes, for a provisioner in the same process. A request saves the
// write of the annotation storage-provisioner, which a provisioner in another process needs; the annotation is written
// when the claim is bound. Requests are lost at a restart, and the binder repeats them. It is safe for concurrent use.
type Requests struct {
	mu sync.Mutex
	// serves says whether the provisioner creates volumes of a driver for a node; nil without a provisioner.
	serves func(driver, node string) bool
	// enqueue queues a claim at the provisioner when its request is new.
	enqueue func(claim types.UID)
	// drivers holds, by claim, the driver that creates the volume.
	drivers map[types.UID]string
}

// NewRequests returns Requests that no provisioner serves yet.
func NewRequests() *Requests { return &Requests{drivers: map[types.UID]string{}} }

// Serve registers the provisioner: serves says for which drivers and nodes it creates volumes, and enqueue is
// called with each claim whose request is new.
func (r *Requests) Serve(serves func(driver, node string) bool, enqueue func(claim types.UID)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serves, r.enqueue = serves, enqueue
}

// Served says whether the provisioner creates volumes of a driver for a node; an empty name means a claim without a
// selected node.
func (r *Requests) Served(driver, node string) bool {
	r.mu.Lock()
	serves := r.serves
	r.mu.Unlock()
	return serves != nil && serves(driver, node)
}

// Ask requests a volume of a driver for a claim. It may be repeated.
func (r *Requests) Ask(claim types.UID, driver string) {
	r.mu.Lock()
	changed := r.drivers[claim] != driver
	r.drivers[claim] = driver
	enqueue := r.enqueue
	r.mu.Unlock()
	if changed && enqueue != nil {
		enqueue(claim)
	}
}

// Asked returns the driver of a claim's request, or "".
func (r *Requests) Asked(claim types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drivers[claim]
}

// Forget drops the request of a claim that has a volume or was deleted.
func (r *Requests) Forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.drivers, claim)
}
