package lease

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/process/lifecycle"
)

// sighting is a lease as it was seen last.
type sighting struct {
	// seen says that the lease has been read; then last is nil if there is none.
	seen bool
	last *coordinationv1.Lease
	// since is when the lease was first seen as it is.
	since time.Time
}

// see records what a lease says, and returns whether it has changed; the lease is nil if there is none.
func (s *sighting) see(now *coordinationv1.Lease) (changed bool) {
	changed = !s.seen || !equality.Semantic.DeepEqual(specOf(now), specOf(s.last))
	s.seen, s.last = true, now.DeepCopy()
	if changed {
		s.since = time.Now()
	}
	return changed
}

func specOf(l *coordinationv1.Lease) *coordinationv1.LeaseSpec {
	if l == nil {
		return nil
	}
	return &l.Spec
}

// holderOf returns who holds a lease and how long others wait after the last renewal, as the lease records it. Fields
// that are missing are those of a lease that can be acquired, as in client-go.
func holderOf(l *coordinationv1.Lease) (holder string, duration time.Duration) {
	if l == nil {
		return "", 0
	}
	return ptr.Deref(l.Spec.HolderIdentity, ""),
		time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)) * time.Second
}

// watcher shows leases of a namespace to those that follow them. They share one watch of the namespace: a process that
// holds several leases would otherwise have the server keep a watch for each. A process that may not watch the
// namespace has a watch for each lease: rights that were given for an older release allow only that.
type watcher struct {
	// leases has no time limit, which would end its watches.
	leases typedcoordinationv1.LeaseInterface

	mu        sync.Mutex
	followers map[*follower]bool
	// over is closed when the watch of the namespace has ended, and end ends it; nil if there is none.
	over <-chan struct{}
	end  context.CancelFunc
}

// follower is shown each change of a lease, nil if it is deleted. It must not block.
type follower struct {
	name string
	see  func(now *coordinationv1.Lease)
}

// followPause is the pause between two watches.
const followPause = time.Second

// follow shows a lease from now on until ctx ends. The version that is read when a watch begins may be older than what
// the watch has shown, which only prolongs a wait. Without the right to watch, the lease is still read.
func (w *watcher) follow(ctx context.Context, f *follower) {
	defer w.remove(f)
	for ctx.Err() == nil {
		over, err := w.watch(ctx, f)
		if now, err := w.leases.Get(ctx, f.name, metav1.GetOptions{}); err == nil {
			f.see(now)
		}
		if err == nil {
			select {
			case <-ctx.Done():
			case <-over:
			}
		}
		lifecycle.Sleep(ctx, followPause)
	}
}

// watch returns what is closed when the watch has ended that shows the lease of a follower.
func (w *watcher) watch(ctx context.Context, f *follower) (over <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followers[f] = true
	select {
	case <-w.over:
	default:
		if w.over != nil {
			return w.over, nil
		}
	}
	all, end := context.WithCancel(context.Background())
	if w.over, err = w.open(all, metav1.ListOptions{}, w.show); err == nil {
		w.end = end
		return w.over, nil
	}
	end()
	if !apierrors.IsForbidden(err) {
		return nil, err
	}
	one := metav1.ListOptions{FieldSelector: "metadata.name=" + f.name}
	return w.open(ctx, one, func(_ string, now *coordinationv1.Lease) { f.see(now) })
}

// remove ends the watch of the namespace with its last follower.
func (w *watcher) remove(f *follower) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.followers, f); len(w.followers) == 0 && w.over != nil {
		w.end()
		w.over = nil
	}
}

// show shows the followers of a lease what it says now.
func (w *watcher) show(name string, now *coordinationv1.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.followers {
		if f.name == name {
			f.see(now)
		}
	}
}

// open begins a watch, which shows leases until ctx ends or the server ends it; then it closes over.
func (w *watcher) open(
	ctx context.Context, o metav1.ListOptions, show func(name string, now *coordinationv1.Lease),
) (<-chan struct{}, error) {
	changes, err := w.leases.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer changes.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-changes.ResultChan():
				l, isLease := e.Object.(*coordinationv1.Lease)
				switch {
				case !open:
					return
				case isLease && e.Type == watch.Deleted:
					show(l.Name, nil)
				case isLease:
					show(l.Name, l)
				}
			}
		}
	}()
	return over, nil
}
