package protection

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/kube"
)

// query asks for the Pods that use a claim.
type query struct {
	// claim is the name of the claim.
	claim string
	// users is the answer.
	users []*corev1.Pod
}

// batches holds the batch of queries of each namespace: one list of its Pods answers all of them.
type batches struct {
	mu  sync.Mutex
	all map[string]*kube.Batch[*query]
}

// of returns the batch of a namespace; list answers its queries.
func (b *batches) of(namespace string, list func(context.Context, string, []*query) error) *kube.Batch[*query] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[string]*kube.Batch[*query]{}
	}
	if b.all[namespace] == nil {
		b.all[namespace] = &kube.Batch[*query]{
			Run: func(ctx context.Context, all []*query) error { return list(ctx, namespace, all) },
		}
	}
	return b.all[namespace]
}
