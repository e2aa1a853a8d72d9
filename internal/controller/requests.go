package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Requests carries the binder's requests for volumes to a provisioner in the
// same process. It says what the annotation storage-provisioner says to one
// elsewhere, without a write: the annotation follows when the claim is bound.
// A restart forgets requests, and the binder makes them again. It is safe for
// concurrent use.
type Requests struct {
	mu     sync.Mutex
	serves func(driver string) bool
	wake   func(claim types.UID)
	asked  map[types.UID]string
}

// NewRequests returns requests that nobody serves yet.
func NewRequests() *Requests { return &Requests{asked: map[types.UID]string{}} }

// Serve makes the caller the one who serves requests: serves says for which
// drivers, and wake is told of claims for which something new is asked.
func (r *Requests) Serve(serves func(driver string) bool, wake func(claim types.UID)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serves, r.wake = serves, wake
}

// Served says whether a request for a volume of the driver is served.
func (r *Requests) Served(driver string) bool {
	r.mu.Lock()
	serves := r.serves
	r.mu.Unlock()
	return serves != nil && serves(driver)
}

// Ask asks for the claim's volume. It may be repeated.
func (r *Requests) Ask(claim types.UID, driver string) {
	r.mu.Lock()
	news := r.asked[claim] != driver
	r.asked[claim] = driver
	wake := r.wake
	r.mu.Unlock()
	if news && wake != nil {
		wake(claim)
	}
}

// Asked returns the driver that was asked for the claim's volume; "" is none.
func (r *Requests) Asked(claim types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[claim]
}

// Forget drops the request of a claim that has its volume or is gone.
func (r *Requests) Forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, claim)
}
