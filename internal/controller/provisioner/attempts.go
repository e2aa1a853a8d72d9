package provisioner

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

// lastPause is the longest pause until a refused request is repeated.
const lastPause = 5 * time.Minute

// attempts holds, by claim, what this process knows of the attempts to make its volume, and what is neither in the API
// nor in the intent log. It is lost at a restart.
type attempts struct {
	// pace bounds the pauses after refusals; zero values are the provisioner's own.
	pace controller.Pace

	mu  sync.Mutex
	all map[types.UID]attempt
	// held holds, by driver and name or handle of a volume, the intent whose volume has it; see hold.
	held map[string]*provision.Intent
}

// attempt is what is known of one claim; most claims have the zero value, which is not kept.
type attempt struct {
	// inherited says that an earlier process has written the intent.
	inherited bool
	// mayExist says that the driver has refused the intent, but may have created a volume.
	mayExist bool
	// missing is since when the driver of the unresolved intent has been missing.
	missing time.Time
	// deleted says that the claim was seen to be deleted while a volume refers to it.
	deleted bool
	// refusals is how often a driver has refused the volume or not answered, or the selected node was removed; until is
	// when each of these requests may be repeated. The same request is repeated after a back-off, whatever queues the
	// claim; a different one is sent immediately.
	refusals int
	until    map[string]time.Time
	// due is when this process may take a claim for which others compete, and inVain how often it had no room for it.
	due    time.Time
	inVain int
}

func newAttempts(pace controller.Pace) *attempts {
	return &attempts{pace: pace, all: map[types.UID]attempt{}, held: map[string]*provision.Intent{}}
}

// learn changes what is known of a claim, and returns what was known before.
func (a *attempts) learn(claim types.UID, change func(*attempt)) (before attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before = a.all[claim]
	after := before
	change(&after)
	a.keep(claim, after)
	return before
}

func (a *attempts) keep(claim types.UID, one attempt) {
	if reflect.ValueOf(one).IsZero() {
		delete(a.all, claim)
		return
	}
	a.all[claim] = one
}

// of returns what is known of a claim.
func (a *attempts) of(claim types.UID) attempt { return a.learn(claim, func(*attempt) {}) }

// refuse records that a request for a claim was refused.
func (a *attempts) refuse(claim types.UID, request string, now time.Time) {
	a.learn(claim, func(one *attempt) {
		if one.until == nil {
			one.until = map[string]time.Time{}
		}
		backoff := a.pace.Retry(queue.Backoff{Min: firstPause, Max: lastPause})
		one.until[request] = now.Add(backoff.Pause(one.refusals))
		one.refusals++
	})
}

// left returns the pause until a request for a claim may be repeated.
func (a *attempts) left(claim types.UID, request string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.all[claim].until[request].Sub(now))
}

// forgetRefusals has each request sent as if it were new.
func (a *attempts) forgetRefusals() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for claim, one := range a.all {
		one.refusals, one.until = 0, nil
		a.keep(claim, one)
	}
}

// untilMissed returns for how long a driver may still be missing before an event says so.
func (a *attempts) untilMissed(in *provision.Intent) time.Duration {
	a.learn(in.Claim.UID, func(one *attempt) {
		if one.missing.IsZero() {
			one.missing = time.Now()
		}
	})
	return lateness - time.Since(a.of(in.Claim.UID).missing)
}

// untilTaken returns for how long to wait before a claim may be taken. The first pause begins when it is asked for.
func (a *attempts) untilTaken(claim types.UID, o Contest) time.Duration {
	if due := a.of(claim).due; !due.IsZero() {
		return time.Until(due)
	}
	return a.draw(claim, o, 0)
}

// takeLater begins another pause, and returns it: an attempt to take the claim was in vain.
func (a *attempts) takeLater(claim types.UID, o Contest) time.Duration { return a.draw(claim, o, 1) }

func (a *attempts) draw(claim types.UID, o Contest, more int) (pause time.Duration) {
	a.learn(claim, func(one *attempt) {
		one.inVain += more
		pause = provision.Delay(cmp.Or(o.BaseDelay, defaultBaseDelay), cmp.Or(o.MaxDelay, defaultMaxDelay), one.inVain,
			rand.Float64()) //nolint:gosec // it is no secret
		one.due = time.Now().Add(pause)
	})
	return pause
}

// nameOf and handleOf are the keys of what a volume has at its driver.
func nameOf(in *provision.Intent) string { return "name " + volume.Key(in.Driver, in.Name) }

func handleOf(in *provision.Intent, handle string) string {
	return "handle " + volume.Key(in.Driver, handle)
}

// hold reserves a key for the volume of an intent, and returns the intent that has it.
func (a *attempts) hold(key string, in *provision.Intent) (holder *provision.Intent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if holder := a.held[key]; holder != nil {
		return holder
	}
	a.held[key] = in
	return in
}

// release gives a key back that the volume of an intent has.
func (a *attempts) release(key string, in *provision.Intent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if holder := a.held[key]; holder != nil && holder.Claim.UID == in.Claim.UID {
		delete(a.held, key)
	}
}

// holdName reserves the name of the intent's volume until the intent is resolved. If names are cut, two claims may get
// the same one, for which the driver has one volume: what is done for one of them would be done to the other's.
func (p *provisioner) holdName(in *provision.Intent) error {
	if p.attempts.hold(nameOf(in), in).Claim.UID == in.Claim.UID {
		return nil
	}
	p.Events.WarnWith(&in.Claim, provision.NameHeld(in), p.try(in).Notes())
	return fmt.Errorf("%w: %s", errNameHeld, in.Name)
}

// holdHandle reserves a handle for the intent's volume until release is called. It returns the name
// of a volume of another claim that has the handle or is being saved with it, or "".
func (p *provisioner) holdHandle(in *provision.Intent, handle string) (taken string, release func()) {
	if holder := p.attempts.hold(handleOf(in, handle), in); holder != in {
		return holder.Name, func() {}
	}
	release = func() { p.attempts.release(handleOf(in, handle), in) }
	for _, v := range p.volumes.By(cluster.VolumesByHandle, volume.Key(in.Driver, handle)) {
		if v.Name != in.Name || !provision.Owns(in.Claim.UID, v) {
			return v.Name, release
		}
	}
	return "", release
}
