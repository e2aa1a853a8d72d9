package kube

import (
	"context"
	"sync"
)

// change is one change of an object. before is the zero value if the object is new, after if it was
// deleted.
type change[T Object] struct{ before, after T }

// listener calls a handler for each change, one after the other, in its own goroutine: a handler
// that waits for a lock does not delay the watch.
type listener[T Object] struct {
	handler func(before, after T)

	mu    sync.Mutex
	queue []change[T]
	wake  chan struct{}
}

func newListener[T Object](f func(before, after T)) *listener[T] {
	return &listener[T]{handler: f, wake: make(chan struct{}, 1)}
}

func (l *listener[T]) notify(changes []change[T]) {
	l.mu.Lock()
	l.queue = append(l.queue, changes...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener[T]) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.mu.Lock()
		changes := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, c := range changes {
			if ctx.Err() != nil {
				return
			}
			l.handler(c.before, c.after)
		}
	}
}
