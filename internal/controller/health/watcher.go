package health

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const kindNode = "node"

// WatcherDeclaration is what the watcher of nodes reads and writes.
func WatcherDeclaration() controller.Declaration {
	return controller.Declaration{
		Name: "nodewatcher", Inputs: kube.Read("", "nodes", "pods", "persistentvolumeclaims", "persistentvolumes"),
	}
}

// watcher reports node failures to the claims of the node's Pods.
type watcher struct {
	controller.Env
	*controller.Controller
	drivers *csi.Set
	now     func() time.Time
	nodes   *kube.Cache[*corev1.Node]
	pods    *kube.Cache[*corev1.Pod]
	claims  *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]

	mu sync.Mutex
	// silentSince holds since when nodes have not been ready, and failed which are known to have failed. After a start
	// both are empty, so that the time begins again, and claims get their events again.
	silentSince map[string]time.Time
	failed      map[string]bool
}

// NewWatcher returns the controller that records events on the claims with volumes of a set of drivers when the node of
// their Pods fails and when it is healthy again; now returns the current time. It must be made before the caches start.
func NewWatcher(env controller.Env, drivers *csi.Set, now func() time.Time) *controller.Controller {
	w := &watcher{
		Env: env, drivers: drivers, now: now, silentSince: map[string]time.Time{}, failed: map[string]bool{},
		Controller: &controller.Controller{Declaration: WatcherDeclaration(), Log: env.Log},
		nodes:      env.Caches.Nodes(), pods: env.Caches.Pods(), claims: env.Caches.Claims(), volumes: env.Caches.Volumes(),
	}
	w.Controller.Reconcile = w.reconcile
	w.nodes.Watch(func(before, after *corev1.Node) {
		switch {
		case after == nil:
			w.Add(controller.Key{Kind: kindNode, Name: before.Name})
		case before == nil || health.NotReady(before) != health.NotReady(after) || before.Status.Phase != after.Status.Phase:
			w.Add(controller.Key{Kind: kindNode, Name: after.Name})
		}
	})
	return w.Controller
}

// reconcile handles one node.
func (w *watcher) reconcile(_ context.Context, key controller.Key) (controller.Result, error) {
	f := health.NodeFacts{Name: key.Name, Claims: w.used(key.Name)}
	f.Node, _ = w.nodes.Get(key.Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Node == nil || !health.NotReady(f.Node) {
		delete(w.silentSince, key.Name)
	} else if since, known := w.silentSince[key.Name]; known {
		f.Silent = w.now().Sub(since)
	} else {
		w.silentSince[key.Name] = w.now()
	}
	f.Failed = w.failed[key.Name]
	p := health.OfFailure(f)
	if p.Failed && f.Node != nil {
		w.failed[key.Name] = true
	} else {
		delete(w.failed, key.Name)
	}
	for _, n := range p.Notices {
		if n.Because.Reason == volume.ReasonNodeRecovered {
			w.Events.Note(n.Claim, n.Because)
		} else {
			w.Events.Warn(n.Claim, n.Because)
		}
	}
	return controller.Result{After: p.Wait}, nil
}

// used returns the claims with volumes of the drivers that Pods on a node use.
func (w *watcher) used(node string) []health.Used {
	drivers := w.drivers.Names()
	pods := map[string][]string{}
	var keys []string
	for _, p := range w.pods.By(cluster.PodsByNode, node) {
		if cluster.Finished(p) {
			continue
		}
		for _, name := range cluster.ClaimNames(p) {
			key := p.Namespace + "/" + name
			if len(pods[key]) == 0 {
				keys = append(keys, key)
			}
			pods[key] = append(pods[key], p.Name)
		}
	}
	var out []health.Used
	for _, key := range keys {
		c, ok := w.claims.Get(key)
		if !ok || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		v, ok := w.volumes.Get(c.Spec.VolumeName)
		if ok && v.Spec.CSI != nil && slices.Contains(drivers, v.Spec.CSI.Driver) {
			out = append(out, health.Used{Claim: c, Pods: slices.Compact(pods[key])})
		}
	}
	return out
}
