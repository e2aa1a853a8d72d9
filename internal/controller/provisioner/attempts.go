package provisioner

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/queue"
	"volplane.dev/volplane/internal/volume"
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

func nameKey(in *provision.Intent) string { return volume.Key(in.Driver, in.Name) }

// holdName reserves the name of the intent's volume until the intent is resolved. If names are cut, two claims may get
// the same one, for which the driver has one volume: what is done for one of them would be done to the other's.
func (p *provisioner) holdName(in *provision.Intent) error {
	holder, held := p.names.LoadOrStore(nameKey(in), in.Claim.UID)
	if !held || holder == in.Claim.UID {
		return nil
	}
	p.Events.WarnWith(&in.Claim, provision.NameHeld(in), p.try(in).Notes())
	return fmt.Errorf("%w: %s", errNameHeld, in.Name)
}

// holdHandle reserves a handle for the intent's volume until release is called. It returns the name
// of a volume of another claim that has the handle or is being saved with it, or "".
func (p *provisioner) holdHandle(in *provision.Intent, handle string) (taken string, release func()) {
	key := volume.Key(in.Driver, handle)
	if other, held := p.handles.LoadOrStore(key, in.Name); held {
		return other.(string), func() {}
	}
	release = func() { p.handles.Delete(key) }
	for _, v := range p.volumes.By(cluster.VolumesByHandle, key) {
		if v.Name != in.Name || !provision.Owns(in.Claim.UID, v) {
			return v.Name, release
		}
	}
	return "", release
}

// enqueueSharers queues the other volumes that have a volume's handle: they may wait for it.
func (p *provisioner) enqueueSharers(v *corev1.PersistentVolume) {
	if v.Spec.CSI == nil {
		return
	}
	for _, same := range p.volumes.By(cluster.VolumesByHandle, volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)) {
		if same.Name != v.Name {
			p.Add(controller.Key{Kind: kindVolume, Name: same.Name})
		}
	}
}
