package kubetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/testkit"
)

// API keeps objects as the API server does: each has a UID, and each write gives it a new version; a write of an older
// version or of an earlier object of the same name is a conflict; a status is written separately from the rest; a
// deleted object stays until its last finalizer is gone, or its node releases it. It is a client that may do anything,
// and records its requests. Methods that compare writes or events wait until all goroutines rest, and are for tests in
// a bubble of synctest.
type API struct {
	*fake.Clientset
	// Fate, if set, decides about each write, by its number, counted from 1, and its text, as in Wrote: whether it is
	// done, and what is answered. Once a controller runs, set it under the lock.
	Fate func(n int, write string) (done bool, err error)
	// Seen, if set, is called after each write, and with each event.
	Seen func(Write)

	t       testing.TB
	objects *objects

	// mu guards what is written down.
	mu     sync.Mutex
	count  int
	writes []string
	done   []string
	events []string
}

// Write is a requested write. Resource includes the subresource, Name the namespace.
type Write struct {
	Verb, Resource, Name string
	// Limits are the preconditions of a deletion.
	Limits string
	// Before and After are the object, or nil if it does not exist.
	Before, After runtime.Object
	// Done says that the write was done, and Err is its answer.
	Done bool
	Err  error
}

// NewAPI returns an API with objects, all of which have the version 1.
func NewAPI(t testing.TB, all ...runtime.Object) *API {
	a := &API{Clientset: &fake.Clientset{}, t: t, objects: newObjects()}
	a.Set(all...)
	a.AddReactor("*", "*", clienttesting.ObjectReaction(a.objects))
	a.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := a.objects.Watch(action.GetResource(), action.GetNamespace(),
			action.(clienttesting.WatchActionImpl).ListOptions)
		return true, w, err
	})
	a.PrependReactor("create", "*", a.write(a.create))
	a.PrependReactor("update", "*", a.write(a.update))
	a.PrependReactor("patch", "*", a.write(a.patch))
	a.PrependReactor("delete", "*", a.write(a.remove))
	return a
}

// Client returns a client for a controller; the test fails if it sends a request that no
// right allows, or changes a field that no right names. Its Actions show what was requested.
func (a *API) Client(rights func() []kube.Access) *fake.Clientset {
	check := func(action clienttesting.Action) error {
		resource := resourceAsked(action)
		if slices.ContainsFunc(rights(), func(r kube.Access) bool {
			return r.Group == action.GetResource().Group && r.Resource == resource && slices.Contains(r.Verbs, action.GetVerb())
		}) {
			return nil
		}
		err := fmt.Errorf("%s of %s is not declared", action.GetVerb(), resource)
		a.t.Error(err)
		return apierrors.NewForbidden(action.GetResource().GroupResource(), "", err)
	}
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if err := check(action); err != nil {
			return true, nil, err
		}
		o, err := fields(a.t, rights(), a.objects, action, func() (runtime.Object, error) { return a.Invokes(action, nil) })
		return true, o, err
	})
	c.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if err := check(action); err != nil {
			return true, nil, err
		}
		w, err := a.InvokesWatch(action)
		return true, w, err
	})
	return c
}

// Tracker is how other clients write, even in the middle of a request: it checks no versions, and ignores finalizers.
func (a *API) Tracker() clienttesting.ObjectTracker { return a.objects }

// Put makes another client create objects or replace all of them.
func (a *API) Put(all ...runtime.Object) {
	a.t.Helper()
	for _, o := range all {
		m, r := MetaOf(o), ResourceOf(o)
		keep := func() error { return a.objects.Add(o) }
		if _, err := a.objects.Get(r, m.GetNamespace(), m.GetName()); err == nil {
			keep = func() error { return a.objects.Update(r, o, m.GetNamespace()) }
		}
		if err := keep(); err != nil {
			a.t.Error(err)
		}
	}
}

// Set stores objects as if they had always existed: they have the version 1.
func (a *API) Set(all ...runtime.Object) {
	a.t.Helper()
	for _, o := range all {
		a.objects.version = 0
		a.Put(o)
	}
	a.objects.version = 1
}

// Edit makes another client replace an object, which is removed if it was deleted and nothing keeps it any more.
func (a *API) Edit(o runtime.Object) {
	a.t.Helper()
	a.Put(o)
	if err := a.collect(ResourceOf(o), o); err != nil {
		a.t.Error(err)
	}
}

// Delete makes another client delete an object, which stays as long as a finalizer keeps it.
func (a *API) Delete(o runtime.Object, options metav1.DeleteOptions) error {
	return a.end(ResourceOf(o), o, options)
}

// Drop makes another client remove an object unconditionally.
func (a *API) Drop(o runtime.Object) {
	a.t.Helper()
	m := MetaOf(o)
	if err := a.objects.Delete(ResourceOf(o), m.GetNamespace(), m.GetName()); err != nil {
		a.t.Fatal(err)
	}
}

// Silence makes later watches report nothing: caches then receive from others only what they list at their start.
func (a *API) Silence() {
	a.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, watch.NewRaceFreeFake(), nil
	})
}

// Refuse has requests of a verb, on a resource, answered with an error from now on; nil ends that.
func (a *API) Refuse(verb, resource string, err error) {
	a.PrependReactor(verb, resource,
		func(clienttesting.Action) (bool, runtime.Object, error) { return err != nil, nil, err })
}

// Wrote compares the writes since it was called last, failed ones too, as "VERB RESOURCE NAME".
func (a *API) Wrote(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff(want, a.writes, Whole()); diff != "" {
		a.t.Errorf("writes (-want +got):\n%s", diff)
	}
	a.writes = nil
}

// Did compares all writes that were done since the beginning.
func (a *API) Did(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if diff := cmp.Diff(want, a.done, Whole()); diff != "" {
		a.t.Errorf("writes done (-want +got):\n%s", diff)
	}
}

// ExpectEvents compares the distinct events since its last call, in any order, as "TYPE NAMESPACE/NAME REASON: MESSAGE
// (WHO ACTS NEXT)".
func (a *API) ExpectEvents(want ...string) {
	a.t.Helper()
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(a.events)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(a.events), Whole()); diff != "" {
		a.t.Errorf("events (-want +got):\n%s", diff)
	}
	a.events = nil
}

// Forget makes Wrote and Told ignore everything that has happened so far.
func (a *API) Forget() {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes, a.events = nil, nil
}

// Has compares the current objects with the wanted ones.
func (a *API) Has(want ...runtime.Object) {
	a.t.Helper()
	synctest.Wait()
	for _, o := range want {
		a.Is(o)
	}
}

// Is compares the current object with the wanted one; more are further options of the comparison.
func (a *API) Is(want runtime.Object, more ...cmp.Option) {
	a.t.Helper()
	m := MetaOf(want)
	got, err := a.objects.Get(ResourceOf(want), m.GetNamespace(), m.GetName())
	if err != nil {
		a.t.Error(err)
		return
	}
	if diff := cmp.Diff(want, got, append(Whole(), more...)); diff != "" {
		a.t.Errorf("%s %s (-want +got):\n%s", ResourceOf(want).Resource, cluster.Key(m), diff)
	}
}

// Eventually fails the test if f does not return "" within a minute; f returns what is missing.
func Eventually(t testing.TB, f func() string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, f)
}

// Whole compares objects in all fields that clients have written, but not in what the API adds.
func Whole() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields", "ResourceVersion"), cmpopts.IgnoreTypes(metav1.TypeMeta{}),
		cmpopts.EquateEmpty(), cmp.Transformer("named", func(uid types.UID) string {
			if strings.HasPrefix(string(uid), givenUID) {
				return ""
			}
			return string(uid)
		}),
	}
}
