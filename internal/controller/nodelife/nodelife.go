package nodelife

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
)

// grace is how long a Lease may stay unchanged, and how long a Node with Pods may be missing: four
// heartbeats, as in Kubernetes.
const grace = 40 * time.Second

const (
	// kindNode is for a node's Ready condition.
	kindNode = "node"
	// kindMissing is for the Pods of a node that may have been deleted.
	kindMissing = "missing"
	// kindDead is for the Pods of a node that is out of service.
	kindDead = "dead"
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "nodelife",
		Inputs: append(kube.Read("", "nodes", "pods"), kube.Read("coordination.k8s.io", "leases")...),
		Outputs: []kube.Access{
			kube.Write("", "nodes/status", "patch").Shared("Unknown when the node is silent, which then says nothing itself",
				kube.Condition(corev1.NodeReady)),
			kube.Write("", "nodes", "get"),
			kube.Write("", "pods", "delete").Shared("of nodes that are gone or out of service", "deletion"),
		},
	}
}

type nodeLife struct {
	controller.Env
	*controller.Controller
	now    func() time.Time
	nodes  kube.Writer[*corev1.Node]
	leases *kube.Cache[*coordinationv1.Lease]
	pods   kube.Writer[*corev1.Pod]

	mu sync.Mutex
	// heartbeats holds the last heartbeat of each node. It is empty after a start, so that the
	// grace period starts again.
	heartbeats map[string]heartbeat
	// missingSince holds since when nodes that have Pods have been missing.
	missingSince map[string]time.Time
}

type heartbeat struct {
	// version is the resource version of the node's Lease.
	version string
	// at is when this version was first seen.
	at time.Time
}

// New returns the controller; now returns the current time. It must be made before the caches
// start.
func New(env controller.Env, now func() time.Time) *controller.Controller {
	l := &nodeLife{
		Env: env, now: now, heartbeats: map[string]heartbeat{}, missingSince: map[string]time.Time{},
		Controller: &controller.Controller{Declaration: Declaration(), Log: env.Log},
		nodes:      env.Caches.WriteNodes(env.Client), leases: env.Caches.NodeLeases(),
		pods: env.Caches.WritePods(env.Client),
	}
	l.Controller.Reconcile = l.reconcile
	l.leases.Watch(func(_, lease *coordinationv1.Lease) {
		if lease != nil {
			l.Add(controller.Key{Kind: kindNode, Name: lease.Name})
		}
	})
	l.nodes.Watch(func(before, after *corev1.Node) {
		switch {
		case after == nil:
			l.forget(before.Name)
			l.Add(controller.Key{Kind: kindMissing, Name: before.Name})
		case before == nil:
			l.Add(controller.Key{Kind: kindNode, Name: after.Name})
			l.Add(controller.Key{Kind: kindMissing, Name: after.Name})
		}
		if nodelife.Dead(after) && !nodelife.Dead(before) {
			l.Add(controller.Key{Kind: kindDead, Name: after.Name})
		}
	})
	l.pods.Watch(l.podChanged)
	return l.Controller
}

func (l *nodeLife) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindMissing:
		return l.reconcileMissing(ctx, key.Name)
	case kindDead:
		return controller.Result{}, l.reconcileDead(ctx, key.Name)
	}
	node, ok := l.nodes.Get(key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	plan := nodelife.Node(l.gather(node))
	if plan.Mark {
		return controller.Result{}, l.mark(ctx, node, plan)
	}
	return controller.Result{After: plan.Wait}, nil
}

func (l *nodeLife) gather(node *corev1.Node) nodelife.Facts {
	f := nodelife.Facts{Node: node, Grace: grace}
	lease, ok := l.leases.Get(corev1.NamespaceNodeLease + "/" + node.Name)
	if ok {
		f.Leased, f.Silent = true, l.silence(node.Name, lease.ResourceVersion)
	}
	return f
}

// silence returns for how long a node's Lease has had its version.
func (l *nodeLife) silence(node, version string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heartbeats[node].version != version {
		l.heartbeats[node] = heartbeat{version: version, at: l.now()}
	}
	return l.now().Sub(l.heartbeats[node].at)
}

func (l *nodeLife) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.heartbeats, node)
}

func (l *nodeLife) mark(ctx context.Context, node *corev1.Node, p nodelife.Plan) error {
	patch := map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: p.Because.Message,
		LastTransitionTime: metav1.Now(),
	}}}}
	if _, err := l.nodes.Patch(ctx, node, types.StrategicMergePatchType, patch, "status"); err != nil {
		return kube.IgnoreNotFound(err)
	}
	l.Events.Warn(node, p.Because)
	return nil
}
