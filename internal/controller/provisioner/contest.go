package provisioner

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
)

// Contest says how claims are taken for which the provisioners of several nodes compete: claims that bind at once, and
// for which nobody selects a node.
type Contest struct {
	// Off leaves such claims alone.
	Off bool
	// BaseDelay and MaxDelay bound the random pause before a claim is taken, at first and after several attempts; 0 means
	// 20 seconds, and a minute.
	BaseDelay, MaxDelay time.Duration
}

const (
	defaultBaseDelay = 20 * time.Second
	defaultMaxDelay  = time.Minute
)

// contests holds, by claim, when this process may take it.
type contests struct {
	mu  sync.Mutex
	all map[types.UID]*contest
}

type contest struct {
	attempts int
	due      time.Time
}

// left returns for how long to wait before a claim may be taken. The first pause begins when it is asked for.
func (k *contests) left(claim types.UID, o Contest) time.Duration {
	k.mu.Lock()
	one := k.all[claim]
	k.mu.Unlock()
	if one == nil {
		return k.draw(claim, o, 0)
	}
	return time.Until(one.due)
}

// again begins another pause, and returns it: an attempt was in vain.
func (k *contests) again(claim types.UID, o Contest) time.Duration { return k.draw(claim, o, 1) }

func (k *contests) draw(claim types.UID, o Contest, more int) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[types.UID]*contest{}
	}
	one := k.all[claim]
	if one == nil {
		one = &contest{}
		k.all[claim] = one
	}
	one.attempts += more
	pause := provision.Delay(cmp.Or(o.BaseDelay, defaultBaseDelay), cmp.Or(o.MaxDelay, defaultMaxDelay), one.attempts,
		rand.Float64()) //nolint:gosec // it is no secret
	one.due = time.Now().Add(pause)
	return pause
}

func (k *contests) forget(claim types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.all, claim)
}

// gatherContest adds the facts of the contest for a claim, and says whether this node may take it now. The driver is
// asked for its room when the pause is over: by then most claims have been taken by others.
func (p *provisioner) gatherContest(ctx context.Context, f *provision.ClaimFacts, d *csi.Driver) bool {
	f.Contest = &provision.Contest{Off: p.Contest.Off}
	if p.Contest.Off {
		return false
	}
	f.Contest.Wait = p.contests.left(f.Claim.UID, p.Contest)
	if f.Contest.Wait > 0 || !d.Controller.GetCapacity {
		return f.Contest.Wait <= 0
	}
	partly := *f
	partly.Partial = true
	if in := provision.Wanted(partly); in != nil {
		f.Contest.Room = p.room(ctx, in, d)
	}
	return true
}

// room returns how much room the driver has on this node for the volume of an intent; nil if it does not say.
func (p *provisioner) room(ctx context.Context, in *provision.Intent, d *csi.Driver) *int64 {
	r := &csipb.GetCapacityRequest{Parameters: in.Parameters}
	if len(d.Place) > 0 {
		r.AccessibleTopology = &csipb.Topology{Segments: d.Place}
	}
	var err error
	if r.VolumeCapabilities, err = capabilities(in, d); err != nil {
		return nil
	}
	got, err := d.ControllerClient().GetCapacity(ctx, r)
	if err != nil {
		p.Env.Log.Info("the driver does not say how much room there is on the node for a claim, which is taken anyway",
			"claim", in.Claim.Namespace+"/"+in.Claim.Name, "err", err)
		return nil
	}
	return &got.AvailableCapacity
}

// take selects the node of this process for a claim, unless the claim has changed meanwhile.
func (p *provisioner) take(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	_, err := p.claims.Update(ctx, provision.Taken(claim, node))
	if apierrors.IsConflict(err) {
		// If another node has taken it, the cache will show it before the pause is over.
		p.AddAfter(controller.Key{Kind: kindClaim, Name: string(claim.UID)}, p.contests.again(claim.UID, p.Contest))
		return nil
	}
	return kube.IgnoreNotFound(err)
}
