package app

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"
)

// WatchedLock is a lease for which several processes compete.
type WatchedLock struct {
	// Namespace and Name are those of the lease.
	Namespace, Name string
	// Identity is the holder's name for this process.
	Identity string
	// Labels are set on the lease when it is written.
	Labels map[string]string
	// Renewed is the client that reads and writes the lease.
	Renewed typedcoordinationv1.LeaseInterface
	// Leases is the client for watching the lease. Its requests must have no time
	// limit, which would end the watches.
	Leases typedcoordinationv1.LeaseInterface
}

// followPause is the pause between two watches.
const followPause = time.Second

// observer watches a lease from the start of the process, and not only while this process tries to acquire it. So the
// leases of a holder that died expire together, however many it held; and a holder sees at once when another program
// deletes or takes its lease.
type observer struct {
	WatchedLock
	// news receives a value when this process has to act: the lease can be acquired, or this process held it, and now the
	// lease is gone or names another holder.
	news chan struct{}

	mu sync.Mutex
	// held says that this process holds the lease, as far as it knows.
	held bool
	// seen says that the lease has been read; then last, which is as it was read, is nil if there is none.
	seen  bool
	last  *coordinationv1.Lease
	since time.Time
	timer *time.Timer
}

func newObserver(s WatchedLock) *observer {
	return &observer{WatchedLock: s, news: make(chan struct{}, 1)}
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
			now, isLease := e.Object.(*coordinationv1.Lease)
			if !isLease || now.Name != o.Name {
				continue
			}
			if e.Type == watch.Deleted {
				now = nil
			}
			o.see(now)
		}
	}
}

// see records what a lease says; it is nil if there is none.
func (o *observer) see(l *coordinationv1.Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	same := o.seen && equality.Semantic.DeepEqual(specOf(l), specOf(o.last))
	o.last = l.DeepCopy()
	if same {
		return
	}
	if o.timer != nil {
		o.timer.Stop()
	}
	o.seen, o.since = true, time.Now()
	holder, duration := held(l)
	switch {
	case o.held && holder != o.Identity:
		o.tell()
	case !o.held && holder == "":
		o.tell()
	case !o.held:
		o.timer = time.AfterFunc(duration, o.tell)
	}
}

func specOf(l *coordinationv1.Lease) *coordinationv1.LeaseSpec {
	if l == nil {
		return nil
	}
	return &l.Spec
}

// givenBack returns the lease as it was seen last if it has no holder, and nil if it has one or does not exist.
func (o *observer) givenBack() *coordinationv1.Lease {
	o.mu.Lock()
	defer o.mu.Unlock()
	if holder, _ := held(o.last); o.last == nil || holder != "" {
		return nil
	}
	return o.last
}

// unchanged returns how long the lease has been seen as it is now, which it sees.
func (o *observer) unchanged(now *coordinationv1.Lease) time.Duration {
	o.see(now)
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.since)
}

// holds records whether this process holds the lease. What was told before is no news any more.
func (o *observer) holds(held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = held
	select {
	case <-o.news:
	default:
	}
}

func (o *observer) tell() {
	select {
	case o.news <- struct{}{}:
	default:
	}
}

// held returns who holds a lease and how long others wait after the last renewal, as the lease records it. Fields that
// are missing are those of a lease that can be acquired, as in client-go.
func held(l *coordinationv1.Lease) (holder string, duration time.Duration) {
	if l == nil {
		return "", 0
	}
	return ptr.Deref(l.Spec.HolderIdentity, ""),
		time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
}
