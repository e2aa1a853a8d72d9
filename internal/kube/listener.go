package kube

import (
	"context"
	"sync"
)

// change is an object before and after; none is that it was not there, or is
// not any more.
type change[T Object] struct{ before, after T }

// listener calls a function for changes, one after the other, while the watch
// goes on: some wait for a lock.
type listener[T Object] struct {
	f func(before, after T)

	mu      sync.Mutex
	waiting []change[T]
	news    chan struct{}
}

func newListener[T Object](f func(before, after T)) *listener[T] {
	return &listener[T]{f: f, news: make(chan struct{}, 1)}
}

func (l *listener[T]) tell(changes []change[T]) {
	l.mu.Lock()
	l.waiting = append(l.waiting, changes...)
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
}

func (l *listener[T]) run(ctx context.Context) {
	for {
		select {
		case <-l.news:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		changes := l.waiting
		l.waiting = nil
		l.mu.Unlock()
		for _, c := range changes {
			if ctx.Err() != nil {
				return
			}
			l.f(c.before, c.after)
		}
	}
}
