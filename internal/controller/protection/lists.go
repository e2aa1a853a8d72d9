package protection

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/kube"
)

// question asks for the Pods that use a claim; the answer is written to it.
type question struct {
	claim string
	users []*corev1.Pod
}

// lists are the questions under way, by namespace.
type lists struct {
	mu  sync.Mutex
	all map[string]*kube.Batch[*question]
}

// of returns the questions of a namespace, which list answers.
func (l *lists) of(namespace string, list func(context.Context, string, []*question) error) *kube.Batch[*question] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]*kube.Batch[*question]{}
	}
	if l.all[namespace] == nil {
		l.all[namespace] = &kube.Batch[*question]{
			Run: func(ctx context.Context, all []*question) error { return list(ctx, namespace, all) },
		}
	}
	return l.all[namespace]
}
