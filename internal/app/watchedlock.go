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

// WatchedLock is a lease that one of several processes holds.
type WatchedLock struct {
	// Interface is how it is held.
	resourcelock.Interface
	// Leases is where others that hold it are watched, by the Name of the lease.
	// Its requests must not be limited in time, as watches end with that.
	Leases typedcoordinationv1.LeaseInterface
	Name   string
}

// followPause is the pause before a watch that has ended begins again.
const followPause = time.Second

// observer watches who holds a lease, from the beginning and not only when its
// turn has come: a holder that has gone is waited for once, however many leases
// it held.
type observer struct {
	WatchedLock
	// free is told once when the lease may be taken now.
	free chan struct{}

	mu    sync.Mutex
	last  sign
	since time.Time
	timer *time.Timer
}

// sign is what a holder renews.
type sign struct {
	holder string
	at     time.Time
}

func signOf(r *resourcelock.LeaderElectionRecord) sign {
	return sign{r.HolderIdentity, r.RenewTime.UTC()}
}

func observe(s WatchedLock) *observer { return &observer{WatchedLock: s, free: make(chan struct{}, 1)} }

// run watches until ctx ends.
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

// follow looks at the lease, and at its changes until the watch ends. What it
// looks at may be older than what it is told first, which only makes it wait
// longer.
func (o *observer) follow(ctx context.Context) {
	w, err := o.Leases.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + o.Name})
	if err != nil {
		// Who may not watch still looks.
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

// see takes what a lease says, and has the lease told to be free when that has
// stood still for as long as it says.
func (o *observer) see(l *coordinationv1.Lease) {
	r := resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := signOf(r); now != o.last || o.timer == nil {
		if o.timer != nil {
			o.timer.Stop()
		}
		o.last, o.since = now, time.Now()
		pause := time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
		if r.HolderIdentity == "" {
			pause = 0
		}
		o.timer = time.AfterFunc(pause, o.tell)
	}
}

func (o *observer) tell() {
	select {
	case o.free <- struct{}{}:
	default:
	}
}

// forget takes back that the lease was told to be free.
func (o *observer) forget() {
	select {
	case <-o.free:
	default:
	}
}

// Get shows a lease whose holder has given no sign for long enough as one that
// nobody holds: the elector, which counts from when it looks first, need not wait
// again.
func (o *observer) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := o.Interface.Get(ctx)
	if err != nil || r.HolderIdentity == o.Identity() {
		return r, raw, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil && o.last == signOf(r) && time.Since(o.since) >= time.Duration(r.LeaseDurationSeconds)*time.Second {
		shown := *r
		shown.HolderIdentity = ""
		r = &shown
	}
	return r, raw, nil
}
