package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
)

// ErrNotRead says that the objects are not in memory yet.
var ErrNotRead = errors.New("the objects of the cluster are not read yet")

// World is what a control plane knows of its cluster, for those who explain it. It is empty until the control plane
// has read its objects.
type World struct {
	client kubernetes.Interface
	// options are those of reading what is not in memory.
	options gather.Options
	// cached returns what is in memory; nil until it is filled.
	cached atomic.Pointer[func() cluster.Lists]

	changed kube.Signal
}

// Ask sets the client that reads what no controller keeps in memory: warnings, leases, intents and moves. It must be
// called before the world is given to ControlPlane.
func (w *World) Ask(client kubernetes.Interface) { w.client = client }

// Follow makes the contents of the caches known to the world once fill is called, which must happen after the caches
// are filled. Follow must be called before they start.
func (w *World) Follow(c *kube.Caches, o gather.Options) (fill func()) {
	w.options = o
	claims, volumes, classes, drivers := c.Claims(), c.Volumes(), c.Classes(), c.CSIDrivers()
	attachments, pods, nodes, csiNodes := c.Attachments(), c.Pods(), c.Nodes(), c.CSINodes()
	snapshots, contents, snapshotClasses := c.Snapshots(), c.SnapshotContents(), c.SnapshotClasses()
	groups, groupContents, groupClasses := c.Groups(), c.GroupContents(), c.GroupClasses()
	lists := func() cluster.Lists {
		return cluster.Lists{
			Claims: claims.List(), Volumes: volumes.List(), Classes: classes.List(), Drivers: drivers.List(),
			Attachments: attachments.List(), Pods: pods.List(), Nodes: nodes.List(), CSINodes: csiNodes.List(),
			Snapshots: snapshots.List(), SnapshotContents: contents.List(), SnapshotClasses: snapshotClasses.List(),
			Groups: groups.List(), GroupContents: groupContents.List(), GroupClasses: groupClasses.List(),
		}
	}
	watch(w, claims)
	watch(w, volumes)
	watch(w, classes)
	watch(w, drivers)
	watch(w, attachments)
	watch(w, pods)
	watch(w, nodes)
	watch(w, csiNodes)
	watch(w, snapshots)
	watch(w, contents)
	watch(w, groups)
	watch(w, groupContents)
	return func() { w.cached.Store(&lists) }
}

func watch[T kube.Object](w *World, c *kube.Cache[T]) { c.Watch(func(T, T) { w.changed.Send() }) }

// Changed returns a channel that is closed at the next change of an object. Who asks before reading misses none.
func (w *World) Changed() <-chan struct{} { return w.changed.Wait() }

// Objects returns what an explanation needs: what the caches hold, and what only the API has.
func (w *World) Objects(ctx context.Context) (state.Objects, error) {
	cached := w.cached.Load()
	if cached == nil {
		return state.Objects{}, ErrNotRead
	}
	r := gather.New(w.client, w.options)
	if err := r.Beside(ctx, (*cached)()); err != nil {
		return state.Objects{}, fmt.Errorf("read what is not in memory: %w", err)
	}
	return r.Objects, nil
}

// Paths returns what an API server serves for those who ask the world, to those with a right to the path.
func (w *World) Paths() map[string]http.Handler { return map[string]http.Handler{survey.Path: w} }

// ServeHTTP answers with a survey.Summary.
func (w *World) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(out, "only GET", http.StatusMethodNotAllowed)
		return
	}
	o, err := w.Objects(r.Context())
	if err != nil {
		http.Error(out, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if ns := r.URL.Query().Get(survey.ParameterNamespace); ns != "" {
		o = o.In(ns)
	}
	data, err := json.Marshal(survey.Summarize(o))
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	_, _ = out.Write(data)
}
