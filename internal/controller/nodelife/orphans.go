package nodelife

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
)

// podChanged has the node of a Pod that is new there looked for.
func (l *nodeLife) podChanged(before, after *corev1.Pod) {
	if after == nil || after.Spec.NodeName == "" || before != nil && before.Spec.NodeName == after.Spec.NodeName {
		return
	}
	if _, there := l.nodes.Get(after.Spec.NodeName); !there {
		l.Add(controller.Key{Kind: kindGone, Name: after.Spec.NodeName})
	}
}

// collect deletes the Pods of a node that stays away.
func (l *nodeLife) collect(ctx context.Context, name string) (controller.Result, error) {
	f := nodelife.OrphanFacts{Name: name, Pods: l.pods.By(kube.PodsByNode, name), Grace: grace}
	f.Node, _ = l.nodes.Get(name)
	f.Missing = l.missing(name, f.Node != nil || len(f.Pods) == 0)
	plan := nodelife.Orphans(f)
	if len(plan.Delete) == 0 {
		return controller.Result{After: plan.Wait}, nil
	}
	// The cache may not have heard yet that it is back; the API server has.
	if _, err := l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return controller.Result{After: grace}, err
	}
	var failed []error
	for _, p := range plan.Delete {
		l.Events.Warn(p, plan.Because)
		err := l.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete pod %s: %w", kube.Key(p), err))
		}
	}
	return controller.Result{}, errors.Join(failed...)
}

// missing returns for how long a node has been looked for in vain.
func (l *nodeLife) missing(name string, found bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found {
		delete(l.gone, name)
		return 0
	}
	if l.gone[name].IsZero() {
		l.gone[name] = l.now()
	}
	return l.now().Sub(l.gone[name])
}
