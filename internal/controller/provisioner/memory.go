package provisioner

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/queue"
)

// lastPause is the longest pause until a refused request is repeated.
const lastPause = 5 * time.Minute

// refusals holds the requests of claims that drivers have refused or not answered, and the nodes
// that were removed from claims. The same request is repeated after a back-off, whatever queues the
// claim; a different one is sent at once.
type refusals struct {
	// retry bounds the pauses; zero values are the provisioner's own.
	retry controller.Pace

	mu  sync.Mutex
	all map[types.UID]*refused
}

// refused is the back-off of one claim.
type refused struct {
	// times is the number of refusals.
	times int
	// until holds when each request may be repeated.
	until map[string]time.Time
}

// add records that a request was refused.
func (r *refusals) add(claim types.UID, request string, now time.Time) {
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
	one.until[request] = now.Add(r.retry.Retry(queue.Backoff{Min: firstPause, Max: lastPause}).Pause(one.times))
	one.times++
}

// last returns the number of refusals of a claim, and when a request may be repeated.
func (r *refusals) last(claim types.UID, request string) (times int, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.all[claim]; one != nil {
		return one.times, one.until[request]
	}
	return 0, time.Time{}
}

// left returns the pause until a request may be repeated.
func (r *refusals) left(claim types.UID, request string, now time.Time) time.Duration {
	_, until := r.last(claim, request)
	return max(0, until.Sub(now))
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
