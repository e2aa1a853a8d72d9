package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"volplane.dev/volplane/internal/cluster"
)

// standstill is the time within which each loop of an agent iterates, even if the API server or a driver does not
// respond.
const standstill = 3 * time.Minute

// pulse knows when each loop of an agent last iterated.
type pulse struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// turned records that a loop has iterated.
func (p *pulse) turned(loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = map[string]time.Time{}
	}
	p.last[loop] = time.Now()
}

// works fails if a loop stands still.
func (p *pulse) works(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for loop, last := range p.last {
		if still := time.Since(last); still > standstill {
			return fmt.Errorf("the %s of the node agent has stood still for %s", loop, still.Round(time.Second))
		}
	}
	return nil
}

// restoreStep is the pause between two checks of the Pods that do not have their volumes.
const restoreStep = 200 * time.Millisecond

// restore calls Restored when the Pods that existed at the start have their volumes, or when RestoreTime is over.
func (a *Agent) restore(ctx context.Context) {
	if a.Restored == nil {
		return
	}
	var waiting []string
	for _, p := range a.Caches.Pods().List() {
		waiting = append(waiting, cluster.Key(p))
	}
	late := time.After(a.RestoreTime)
	tick := time.NewTicker(restoreStep)
	defer tick.Stop()
	for late != nil {
		if waiting = a.pods.Incomplete(waiting); len(waiting) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			a.Log.Warn("the start does not wait any longer for the volumes of these Pods", "pods", waiting)
			late = nil
		case <-tick.C:
		}
	}
	a.Restored(ctx, a.pulse.works)
}
