package nodelife

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// podChanged queues the node of a Pod if the node is dead, or if it is missing and new to the Pod.
func (l *nodeLife) podChanged(before, after *corev1.Pod) {
	if after == nil || after.Spec.NodeName == "" {
		return
	}
	node, exists := l.nodes.Get(after.Spec.NodeName)
	switch {
	case !exists && (before == nil || before.Spec.NodeName != after.Spec.NodeName):
		l.Add(controller.Key{Kind: kindMissing, Name: after.Spec.NodeName})
	case exists && nodelife.Dead(node):
		l.Add(controller.Key{Kind: kindDead, Name: node.Name})
	}
}

// reconcileDead deletes the Pods of a node that is out of service.
func (l *nodeLife) reconcileDead(ctx context.Context, name string) error {
	node, _ := l.nodes.Get(name)
	pods := l.pods.By(cluster.PodsByNode, name)
	if plan := nodelife.DeadPods(name, node, pods); len(plan.Delete) == 0 {
		return nil
	}
	// The cache may not show yet that the agent has returned.
	node, err := l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	plan := nodelife.DeadPods(name, node, pods)
	return l.remove(ctx, plan.Delete, plan.Because)
}

// reconcileMissing deletes the Pods of a node that has been missing for the grace period.
func (l *nodeLife) reconcileMissing(ctx context.Context, name string) (controller.Result, error) {
	f := nodelife.OrphanFacts{Name: name, Pods: l.pods.By(cluster.PodsByNode, name), Grace: grace}
	f.Node, _ = l.nodes.Get(name)
	f.Missing = l.missing(name, f.Node != nil || len(f.Pods) == 0)
	plan := nodelife.Orphans(f)
	if len(plan.Delete) == 0 {
		return controller.Result{After: plan.Wait}, nil
	}
	// The cache may not show yet that the node exists again, so the API server is read.
	if _, err := l.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return controller.Result{After: grace}, err
	}
	return controller.Result{}, l.remove(ctx, plan.Delete, plan.Because)
}

// remove deletes Pods without waiting for their node.
func (l *nodeLife) remove(ctx context.Context, pods []*corev1.Pod, why volume.Because) error {
	var failed []error
	for _, p := range pods {
		l.Events.WarnWith(p, why, map[string]string{volume.AnnClaims: strings.Join(cluster.ClaimNames(p), ",")})
		failed = append(failed, l.pods.Delete(ctx, p, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	}
	return errors.Join(failed...)
}

// missing returns for how long a node has been missing; 0 if it exists or nothing needs it.
func (l *nodeLife) missing(name string, unneeded bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if unneeded {
		delete(l.missingSince, name)
		return 0
	}
	if l.missingSince[name].IsZero() {
		l.missingSince[name] = l.now()
	}
	return l.now().Sub(l.missingSince[name])
}
