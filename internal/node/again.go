package node

import (
	"sync"
	"time"
)

// again knows when the drivers that want to be called again and again for what
// they have published (requiresRepublish) were called last.
type again struct {
	every time.Duration
	// wants says whether a driver is one of them.
	wants func(driver string) bool

	mu   sync.Mutex
	last map[string]time.Time
}

// due says whether it is time to call a driver again for a target. After a
// start of the agent it is: what the driver was told before may be old.
func (g *again) due(driver, path string) bool {
	if !g.wants(driver) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.last[path]) >= g.every
}

// done notes that a driver was called.
func (g *again) done(driver, path string) {
	if !g.wants(driver) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last[path] = time.Now()
}

func (g *again) forget(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.last, path)
}

// next returns in which time a driver is to be called again; 0 is never.
func (g *again) next(driver string) time.Duration {
	if !g.wants(driver) {
		return 0
	}
	return g.every
}
