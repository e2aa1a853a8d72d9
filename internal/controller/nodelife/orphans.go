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

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/volume"
)

// podChanged has the node of a Pod that is new there looked for, and of one that
// is going.
func (l *nodeLife) podChanged(before, after *corev1.Pod) {
	if after == nil || after.Spec.NodeName == "" {
		return
	}
	node, there := l.nodes.Get(after.Spec.NodeName)
	switch {
	case !there && (before == nil || before.Spec.NodeName != after.Spec.NodeName):
		l.Add(controller.Key{Kind: kindGone, Name: after.Spec.NodeName})
	case there && nodelife.Dead(node):
		l.Add(controller.Key{Kind: kindDead, Name: node.Name})
	}
}

// collectDead deletes the Pods of a node that is off.
func (l *nodeLife) collectDead(ctx context.Context, name string) error {
	node, _ := l.nodes.Get(name)
	pods := l.pods.By(cluster.PodsByNode, name)
	if plan := nodelife.DeadPods(name, node, pods); len(plan.Delete) == 0 {
		return nil
	}
	// The cache may not have heard yet that its agent is back.
	node, err := l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at node %s: %w", name, err)
	}
	plan := nodelife.DeadPods(name, node, pods)
	return l.remove(ctx, plan.Delete, plan.Because)
}

// collect deletes the Pods of a node that stays away.
func (l *nodeLife) collect(ctx context.Context, name string) (controller.Result, error) {
	f := nodelife.OrphanFacts{Name: name, Pods: l.pods.By(cluster.PodsByNode, name), Grace: grace}
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
	return controller.Result{}, l.remove(ctx, plan.Delete, plan.Because)
}

// remove deletes Pods without asking their node.
func (l *nodeLife) remove(ctx context.Context, pods []*corev1.Pod, why volume.Because) error {
	var failed []error
	for _, p := range pods {
		l.Events.Warn(p, why)
		failed = append(failed, l.pods.Delete(ctx, p, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	}
	return errors.Join(failed...)
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
