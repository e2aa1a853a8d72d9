package app

import (
	"context"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// sharedWatch is a client of leases whose watches of single leases share one watch of the namespace: a process that
// holds several leases would otherwise have the server keep a watch for each. Who may not watch the namespace gets a
// watch for each lease: rights that were given for an older release allow only that.
type sharedWatch struct {
	typedcoordinationv1.LeaseInterface

	mu sync.Mutex
	// watched holds, by the name of a lease, those who watch it.
	watched map[string]map[*leaseWatch]bool
	// end ends the watch of the namespace; nil while there is none.
	end context.CancelFunc
}

func newSharedWatch(leases typedcoordinationv1.LeaseInterface) *sharedWatch {
	return &sharedWatch{LeaseInterface: leases, watched: map[string]map[*leaseWatch]bool{}}
}

// leaseWatch is one watch of one lease. It ends by Stop, and when the watch of the namespace ends.
type leaseWatch struct {
	of     *sharedWatch
	name   string
	events chan watch.Event
}

// Watch watches the lease that the field selector names. Of several changes that its receiver is slow to take, it gets
// the last.
func (s *sharedWatch) Watch(single context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		ctx, end := context.WithCancel(context.Background())
		all, err := s.LeaseInterface.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			end()
			if apierrors.IsForbidden(err) {
				return s.LeaseInterface.Watch(single, o)
			}
			return nil, err
		}
		s.end = end
		go s.pass(ctx, all)
	}
	w := &leaseWatch{of: s, name: strings.TrimPrefix(o.FieldSelector, "metadata.name="), events: make(chan watch.Event, 1)}
	if s.watched[w.name] == nil {
		s.watched[w.name] = map[*leaseWatch]bool{}
	}
	s.watched[w.name][w] = true
	return w, nil
}

// pass passes the changes of leases to those who watch them. When the watch of the namespace ends, so do theirs; when
// ctx ends, nobody watches any more.
func (s *sharedWatch) pass(ctx context.Context, all watch.Interface) {
	defer all.Stop()
	for open := true; open; {
		var e watch.Event
		select {
		case <-ctx.Done():
			return
		case e, open = <-all.ResultChan():
		}
		if l, ok := e.Object.(*coordinationv1.Lease); ok {
			s.send(l.Name, e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	s.stop()
	for _, those := range s.watched {
		for w := range those {
			close(w.events)
		}
	}
	clear(s.watched)
}

func (s *sharedWatch) send(name string, e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watched[name] {
		select {
		case <-w.events:
		default:
		}
		w.events <- e
	}
}

// stop ends the watch of the namespace; s.mu is held.
func (s *sharedWatch) stop() {
	if s.end != nil {
		s.end()
		s.end = nil
	}
}

// ResultChan returns the changes of the lease.
func (w *leaseWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch; the last one ends that of the namespace. It may be repeated.
func (w *leaseWatch) Stop() {
	s := w.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watched[w.name][w] {
		return
	}
	close(w.events)
	delete(s.watched[w.name], w)
	if len(s.watched[w.name]) == 0 {
		delete(s.watched, w.name)
	}
	if len(s.watched) == 0 {
		s.stop()
	}
}
