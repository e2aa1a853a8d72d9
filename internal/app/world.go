package app

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// World is what a control plane knows of its cluster, for those who explain it. It is empty until the control plane
// has read its objects.
type World struct {
	client kubernetes.Interface
	filled atomic.Bool
	cached func() cluster.Lists

	mu sync.Mutex
	// changed is closed at the next change; nil if nobody waits for one.
	changed chan struct{}
}

// NewWorld returns a world for ControlPlaneOptions. The client reads the warnings, leases and intents, which no
// controller keeps in memory.
func NewWorld(client kubernetes.Interface) *World {
	return &World{client: client}
}

// follow has the world know what the caches hold. It must be called before they start.
func (w *World) follow(c *kube.Caches) {
	claims, volumes, classes, drivers := c.Claims(), c.Volumes(), c.Classes(), c.CSIDrivers()
	attachments, pods, nodes, csiNodes := c.Attachments(), c.Pods(), c.Nodes(), c.CSINodes()
	snapshots, contents, snapshotClasses := c.Snapshots(), c.SnapshotContents(), c.SnapshotClasses()
	w.cached = func() cluster.Lists {
		return cluster.Lists{
			Claims: claims.List(), Volumes: volumes.List(), Classes: classes.List(), Drivers: drivers.List(),
			Attachments: attachments.List(), Pods: pods.List(), Nodes: nodes.List(), CSINodes: csiNodes.List(),
			Snapshots: snapshots.List(), SnapshotContents: contents.List(), SnapshotClasses: snapshotClasses.List(),
		}
	}
	tellOf(w, claims)
	tellOf(w, volumes)
	tellOf(w, classes)
	tellOf(w, drivers)
	tellOf(w, attachments)
	tellOf(w, pods)
	tellOf(w, nodes)
	tellOf(w, csiNodes)
	tellOf(w, snapshots)
	tellOf(w, contents)
}

func tellOf[T kube.Object](w *World, c *kube.Cache[T]) { c.Watch(func(T, T) { w.tell() }) }

// fill lets others read the world. The caches have been filled.
func (w *World) fill() { w.filled.Store(true) }

// tell wakes those who wait for a change.
func (w *World) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Changed returns a channel that is closed at the next change of an object. Who asks before reading misses none.
func (w *World) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// Objects returns what an explanation needs: what the caches hold, and what only the API has.
func (w *World) Objects(ctx context.Context) (state.Objects, error) {
	if !w.filled.Load() {
		return state.Objects{}, errNotRead
	}
	o := state.Objects{Lists: w.cached(), Now: time.Now()}
	events, err := w.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + corev1.EventTypeWarning,
	})
	if err != nil {
		return o, fmt.Errorf("read warnings: %w", err)
	}
	o.Warnings = kube.Pointers(events.Items)
	slices.SortStableFunc(o.Warnings, func(a, b *corev1.Event) int {
		return gather.LastSeen(a).Compare(gather.LastSeen(b))
	})
	leases, err := w.client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, fmt.Errorf("read leases: %w", err)
	}
	o.Leases = kube.Pointers(leases.Items)
	logs, err := w.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		LabelSelector: volume.LabelIntents,
	})
	if err != nil {
		return o, fmt.Errorf("read intents: %w", err)
	}
	for _, log := range logs.Items {
		begun, _ := provision.ParseIntents(log.Data) // what makes no sense explains nothing
		o.Begun = append(o.Begun, begun...)
	}
	return o, nil
}
