package volumes

import (
	"sync"
	"time"
)

// republishes know when the drivers that want to be called again and again for what
// they have published (requiresRepublish) were called last.
type republishes struct {
	every time.Duration
	// wants says whether a driver is one of them.
	wants func(driver string) bool

	mu   sync.Mutex
	last map[string]time.Time
}

// due says whether it is time to call a driver again for a target. After a
// start of the agent it is: what the driver was told before may be old.
func (r *republishes) due(driver, path string) bool {
	if !r.wants(driver) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last[path]) >= r.every
}

// done notes that a driver was called.
func (r *republishes) done(driver, path string) {
	if !r.wants(driver) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[path] = time.Now()
}

func (r *republishes) forget(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, path)
}

// next returns in which time a driver is to be called again; 0 is never.
func (r *republishes) next(driver string) time.Duration {
	if !r.wants(driver) {
		return 0
	}
	return r.every
}
