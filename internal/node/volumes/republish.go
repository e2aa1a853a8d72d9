package volumes

import (
	"sync"
	"time"
)

// republishes schedules the repeated calls of drivers with requiresRepublish.
type republishes struct {
	// every is the pause between two calls for a target.
	every time.Duration
	// required says whether a driver has requiresRepublish.
	required func(driver string) bool

	mu sync.Mutex
	// last is the time of the last call, by target path.
	last map[string]time.Time
}

// due says whether it is time to call a driver again for a target. It is after each start of the agent.
func (r *republishes) due(driver, path string) bool {
	if !r.required(driver) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last[path]) >= r.every
}

// done records a call for a target.
func (r *republishes) done(driver, path string) {
	if !r.required(driver) {
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

// next returns the time until the next call of a driver; 0 means never.
func (r *republishes) next(driver string) time.Duration {
	if !r.required(driver) {
		return 0
	}
	return r.every
}
