package kube

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Watchable is an object that can be waited for.
type Watchable interface {
	comparable
	metav1.Object
}

// Source reads and watches objects of one type.
type Source[T Watchable] struct {
	Get   func(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Follow calls done with the object and then with each changed version, or with the
// zero value if it does not exist, until done returns true or an error.
func Follow[T Watchable](ctx context.Context, s Source[T], name string, done func(T) (bool, error)) error {
	var none T
	for {
		o, err := s.Get(ctx, name, metav1.GetOptions{})
		version := ""
		switch {
		case apierrors.IsNotFound(err):
			o = none
		case err != nil:
			return err
		default:
			version = o.GetResourceVersion()
		}
		if ok, err := done(o); ok || err != nil {
			return err
		}
		w, err := s.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: version})
		if err != nil {
			return err
		}
		ok, err := drain(ctx, w, done)
		w.Stop()
		if ok || err != nil {
			return err
		}
	}
}

// drain calls done for the events of one watch. It returns false if the server has ended the watch.
func drain[T Watchable](ctx context.Context, w watch.Interface, done func(T) (bool, error)) (bool, error) {
	var none T
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case e, open := <-w.ResultChan():
			o, ok := e.Object.(T)
			if !open || !ok || e.Type == watch.Error {
				return false, context.Cause(ctx)
			}
			if e.Type == watch.Deleted {
				o = none
			}
			if ok, err := done(o); ok || err != nil {
				return ok, err
			}
		}
	}
}

// Unless returns nil if the error is expected, or else err.
func Unless(expected bool, err error) error {
	if expected {
		return nil
	}
	return err
}

// Signal wakes all who wait for a change. The zero value is ready.
type Signal struct {
	mu sync.Mutex
	// next is closed at the next change; nil if nothing waits for one.
	next chan struct{}
}

// Send wakes all who wait.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Wait returns a channel that the next change closes. One who calls it before reading misses no change.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}
