package kube

import (
	"context"
	"slices"
	"sync"
)

// Batch collects the items that are given to Do while a batch runs, and runs them together as the
// next batch. At most one batch runs at a time. It is safe for concurrent use.
type Batch[T any] struct {
	// Run processes one batch. It is called after the Do calls of all its items began.
	Run func(ctx context.Context, items []T) error
	// Wait, if set, is called before the items of a batch are taken, to let more items arrive.
	Wait func(ctx context.Context)
	// Fit, if set, returns how many of the items, in their order, go into the batch: at least 1.
	Fit func(items []T) int

	mu      sync.Mutex
	queue   []waiter[T]
	running bool
}

type waiter[T any] struct {
	item T
	// wake receives the end of the item's batch, or the order to run the next batch.
	wake chan signal
}

type signal struct {
	runNext bool
	err     error
}

// Do waits until a batch with the item has run, and returns the error of that batch.
func (b *Batch[T]) Do(ctx context.Context, item T) error {
	a := waiter[T]{item: item, wake: make(chan signal, 2)}
	b.mu.Lock()
	b.queue = append(b.queue, a)
	if !b.running {
		b.running = true
		a.wake <- signal{runNext: true}
	}
	b.mu.Unlock()
	for {
		t := <-a.wake
		if !t.runNext {
			return t.err
		}
		b.runNext(ctx)
	}
}

// runNext runs a batch. If more items are waiting then, it has the first of them run the next batch.
func (b *Batch[T]) runNext(ctx context.Context) {
	if b.Wait != nil {
		b.Wait(ctx)
	}
	batch, items := b.take()
	err := b.Run(ctx, items)
	for _, a := range batch {
		a.wake <- signal{err: err}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 {
		b.queue[0].wake <- signal{runNext: true}
	} else {
		b.running = false
	}
}

func (b *Batch[T]) take() (batch []waiter[T], items []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.queue {
		items = append(items, a.item)
	}
	n := len(items)
	if b.Fit != nil {
		n = b.Fit(items)
	}
	batch = slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	return batch, items[:n]
}

// Pointers returns pointers to the items: API lists hold objects by value, caches and decisions take pointers.
func Pointers[T any](items []T) []*T {
	out := make([]*T, 0, len(items))
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}
