package kube

import (
	"context"
	"slices"
	"sync"
)

// Batch does together what is asked for at the same time: what is asked for
// while a batch runs makes up the next one. There is always at most one that
// runs. It is safe for concurrent use.
type Batch[T any] struct {
	// Run does what all items of a batch ask for. It begins after each of them
	// was asked for.
	Run func(ctx context.Context, items []T) error
	// Wait, when set, is called before a batch is taken, so that more can come.
	Wait func(ctx context.Context)
	// Fit, when set, says how many of the items, in their order, make up a
	// batch; at least 1.
	Fit func(items []T) int

	mu      sync.Mutex
	waiting []asked[T]
	leading bool
}

type asked[T any] struct {
	item T
	// turn tells the end of the batch, or that this one runs the next.
	turn chan turn
}

type turn struct {
	lead bool
	err  error
}

// Do returns when a batch with the item has run, with its error.
func (b *Batch[T]) Do(ctx context.Context, item T) error {
	a := asked[T]{item: item, turn: make(chan turn, 2)}
	b.mu.Lock()
	b.waiting = append(b.waiting, a)
	if !b.leading {
		b.leading = true
		a.turn <- turn{lead: true}
	}
	b.mu.Unlock()
	for {
		t := <-a.turn
		if !t.lead {
			return t.err
		}
		b.lead(ctx)
	}
}

// lead runs a batch, and has the next one lead if more has come meanwhile.
func (b *Batch[T]) lead(ctx context.Context) {
	if b.Wait != nil {
		b.Wait(ctx)
	}
	batch, items := b.take()
	err := b.Run(ctx, items)
	for _, a := range batch {
		a.turn <- turn{err: err}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 {
		b.waiting[0].turn <- turn{lead: true}
	} else {
		b.leading = false
	}
}

func (b *Batch[T]) take() (batch []asked[T], items []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.waiting {
		items = append(items, a.item)
	}
	n := len(items)
	if b.Fit != nil {
		n = b.Fit(items)
	}
	batch = slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	return batch, items[:n]
}
