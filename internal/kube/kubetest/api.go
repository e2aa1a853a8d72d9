package kubetest

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
)

// API keeps objects as the API server does: each write gives its object a new
// version, and one of an older version is a conflict; a status is written by
// itself, and nothing else with it. It writes down what it is asked to do. It is
// for tests in a bubble of synctest, and what compares waits until all rests.
type API struct {
	*fake.Clientset
	// Fate, when set, decides about each write, by its number, counted from 1:
	// whether it is done, and what is answered. Once a controller runs it is set
	// under the lock.
	Fate func(n int, write string) (done bool, err error)

	t testing.TB
	// tracker is quicker than that of the Clientset, which keeps who wrote what.
	tracker clienttesting.ObjectTracker
	version atomic.Int64
	// rights are those of the controller that runs.
	rights []kube.Access
	count  int
	writes []string
	done   []string
	told   []string
	// events are the texts of events by their names.
	events map[string]string
}

// NewAPI returns an API with objects, all of which have the version 1.
func NewAPI(t testing.TB, objects ...runtime.Object) *API {
	a := &API{Clientset: &fake.Clientset{}, t: t, events: map[string]string{}}
	tracker := &numbered{
		ObjectTracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()), now: a.version.Load,
	}
	a.tracker = tracker
	a.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))
	a.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	for _, o := range objects {
		a.keep(o, "1")
	}
	a.version.Store(1)
	a.PrependReactor("create", "*", a.write(a.create))
	a.PrependReactor("update", "*", a.write(a.update))
	a.PrependReactor("patch", "*", a.write(a.patch))
	a.PrependReactor("delete", "*", a.write(a.remove))
	a.PrependReactor("*", "events", a.event)
	return a
}

// Put has somebody else make objects or replace all of them, while the controller
// rests or in Fate.
func (a *API) Put(objects ...runtime.Object) {
	for _, o := range objects {
		a.keep(o, a.next())
	}
}

// Drop has somebody else take an object away.
func (a *API) Drop(o runtime.Object) {
	a.t.Helper()
	m := metaOf(o)
	if err := a.tracker.Delete(resourceOf(o), m.GetNamespace(), m.GetName()); err != nil {
		a.t.Fatal(err)
	}
}

// Wrote compares the writes since it was called last, failed ones too, as "VERB
// RESOURCE NAME".
func (a *API) Wrote(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.Lock()
	defer a.Unlock()
	if diff := cmp.Diff(want, a.writes, Whole()); diff != "" {
		a.t.Errorf("writes (-want +got):\n%s", diff)
	}
	a.writes = nil
}

// Did compares all writes that were done since the beginning.
func (a *API) Did(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.Lock()
	defer a.Unlock()
	if diff := cmp.Diff(want, a.done, Whole()); diff != "" {
		a.t.Errorf("writes done (-want +got):\n%s", diff)
	}
}

// Told compares the different events since it was called last, in any order, as "TYPE
// NAMESPACE/NAME REASON: MESSAGE (WHO ACTS NEXT)".
func (a *API) Told(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.Lock()
	defer a.Unlock()
	slices.Sort(a.told)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(a.told), Whole()); diff != "" {
		a.t.Errorf("events (-want +got):\n%s", diff)
	}
	a.told = nil
}

// Forget has Wrote and Told know only of what comes.
func (a *API) Forget() {
	synctest.Wait()
	a.Lock()
	defer a.Unlock()
	a.writes, a.told = nil, nil
}

// Has compares objects as they are with what they are wanted to be.
func (a *API) Has(want ...runtime.Object) {
	a.t.Helper()
	synctest.Wait()
	for _, o := range want {
		m := metaOf(o)
		got, err := a.tracker.Get(resourceOf(o), m.GetNamespace(), m.GetName())
		if err != nil {
			a.t.Error(err)
			continue
		}
		if diff := cmp.Diff(o, got, Whole()); diff != "" {
			a.t.Errorf("%s %s (-want +got):\n%s", resourceOf(o).Resource, cluster.Key(m), diff)
		}
	}
}

// Run has a controller work over the API until stop is called, and returns when
// it rests. It must not ask for more than it has declared.
func (a *API) Run(build func(controller.Env) *controller.Controller) (c *controller.Controller, stop func()) {
	a.t.Helper()
	ctx, cancel := context.WithCancel(a.t.Context())
	caches := kube.NewCaches(a.Clientset)
	c = build(controller.Env{
		Client: a.Clientset, Caches: caches, Events: kube.NewRecorder(ctx, a.Clientset, "test"),
		Log: slog.New(slog.DiscardHandler),
	})
	a.rights = c.Rights()
	if err := caches.Start(ctx); err != nil {
		a.t.Fatal(err)
	}
	// This client forgets what happens between a list and a watch.
	synctest.Wait()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	synctest.Wait()
	return c, func() {
		a.t.Helper()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			a.t.Error(err)
		}
		a.declared(c.Rights())
	}
}

// declared says what was asked for without a right to it.
func (a *API) declared(rights []kube.Access) {
	a.t.Helper()
	for _, asked := range a.Actions() {
		group, resource := asked.GetResource().Group, resourceAsked(asked)
		if !slices.ContainsFunc(rights, func(r kube.Access) bool {
			return r.Group == group && r.Resource == resource && slices.Contains(r.Verbs, asked.GetVerb())
		}) {
			a.t.Errorf("%s %s: not declared", asked.GetVerb(), resource)
		}
	}
}
