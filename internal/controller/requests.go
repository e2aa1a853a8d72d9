package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Requests holds the binder's requests to create volumes, for a provisioner in the same process. A
// request saves the write of the annotation storage-provisioner, which a provisioner in another
// process needs; the annotation is written when the claim is bound. Requests are lost at a restart,
// and the binder repeats them. It is safe for concurrent use.
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
