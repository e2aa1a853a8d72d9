package provisioner

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/queue"
)

// lastPause is the longest pause before the same is asked of a driver that said
// no.
const lastPause = 5 * time.Minute

// refusals are what drivers have said no to, or have not answered, and nodes that
// claims were taken from. The same is tried again after a pause that grows, whatever wakes
// its claim; something else at once.
type refusals struct {
	mu  sync.Mutex
	all map[types.UID]*refused
}

type refused struct {
	times int
	until map[string]time.Time
}

// add notes a no to what question says.
func (r *refusals) add(claim types.UID, question string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[types.UID]*refused{}
	}
	one := r.all[claim]
	if one == nil {
		one = &refused{until: map[string]time.Time{}}
		r.all[claim] = one
	}
	one.until[question] = now.Add(queue.Backoff{Min: firstPause, Max: lastPause}.Pause(one.times))
	one.times++
}

// left says for how long the question is not asked again.
func (r *refusals) left(claim types.UID, question string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.all[claim]; one != nil {
		return max(0, one.until[question].Sub(now))
	}
	return 0
}

func (r *refusals) forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, claim)
}

func (r *refusals) forgetAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.all)
}
