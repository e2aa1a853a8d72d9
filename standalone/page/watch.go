package page

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// listWatch returns a ListWatch for the objects of a typed client that match a selection.
func listWatch[L runtime.Object](api interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}, selected func(metav1.ListOptions) metav1.ListOptions,
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, selected(o))
		},
	}
}

// poked is a store that keeps nothing, and signals a channel at each change.
type poked chan struct{}

func (p poked) poke() error {
	poke(p)
	return nil
}

// Add implements cache.ReflectorStore, as do the following.
func (p poked) Add(any) error { return p.poke() }

// Update pokes.
func (p poked) Update(any) error { return p.poke() }

// Delete pokes.
func (p poked) Delete(any) error { return p.poke() }

// Replace pokes.
func (p poked) Replace([]any, string) error { return p.poke() }

// Resync does nothing: nothing is kept.
func (p poked) Resync() error { return nil }

// wait returns after a time, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
