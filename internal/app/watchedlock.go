package app

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

// WatchedLock is a lease for which several processes compete.
type WatchedLock struct {
	// Interface acquires and renews the lease.
	resourcelock.Interface
	// Leases is the client for watching the lease. Its requests must have no time
	// limit, which would end the watches.
	Leases typedcoordinationv1.LeaseInterface
	// Name is the name of the lease.
	Name string
}

// followPause is the pause between two watches.
const followPause = time.Second

// observer watches the renewals of a lease from the start of the process, and not only
// while this process tries to acquire it. So the leases of a holder that died expire
// together, however many it held.
type observer struct {
	WatchedLock
	// free receives when the lease can be acquired.
	free chan struct{}

	mu    sync.Mutex
	last  renewal
	since time.Time
	timer *time.Timer
}

// renewal identifies the last renewal of a lease.
type renewal struct {
	holder string
	at     time.Time
}

func renewalOf(r *resourcelock.LeaderElectionRecord) renewal {
	return renewal{r.HolderIdentity, r.RenewTime.UTC()}
}

func newObserver(s WatchedLock) *observer {
	return &observer{WatchedLock: s, free: make(chan struct{}, 1)}
}

// run watches the lease until ctx ends.
func (o *observer) run(ctx context.Context) {
	for ctx.Err() == nil {
		o.follow(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
}

// follow reads the lease and then its changes until the watch ends. The version that
// it reads may be older than the first change; this only prolongs the wait.
func (o *observer) follow(ctx context.Context) {
	w, err := o.Leases.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + o.Name})
	if err != nil {
		// Without the right to watch, the lease is still read.
		w = watch.NewEmptyWatch()
	}
	defer w.Stop()
	if now, err := o.Leases.Get(ctx, o.Name, metav1.GetOptions{}); err == nil {
		o.see(now)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if now, ok := e.Object.(*coordinationv1.Lease); ok && now.Name == o.Name {
				o.see(now)
			}
		}
	}
}

// see records the last renewal of a lease, and notifies free when the lease has not been
// renewed for its duration.
func (o *observer) see(l *coordinationv1.Lease) {
	r := resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := renewalOf(r); now != o.last || o.timer == nil {
		if o.timer != nil {
			o.timer.Stop()
		}
		o.last, o.since = now, time.Now()
		pause := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
		if r.HolderIdentity == "" {
			pause = 0
		}
		o.timer = time.AfterFunc(pause, o.notifyFree)
	}
}

func (o *observer) notifyFree() {
	select {
	case o.free <- struct{}{}:
	default:
	}
}

// drainFree removes a notification that the lease is free.
func (o *observer) drainFree() {
	select {
	case <-o.free:
	default:
	}
}

// Get returns an expired lease without a holder, so that the elector acquires it at
// once. The elector itself would count the lease duration from its own first read.
func (o *observer) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := o.Interface.Get(ctx)
	if err != nil || r.HolderIdentity == o.Identity() {
		return r, raw, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	duration := time.Duration(r.LeaseDurationSeconds) * time.Second
	if o.timer != nil && o.last == renewalOf(r) && time.Since(o.since) >= duration {
		shown := *r
		shown.HolderIdentity = ""
		r = &shown
	}
	return r, raw, nil
}
