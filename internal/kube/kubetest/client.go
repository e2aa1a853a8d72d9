package kubetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube"
)

// NewClient returns a client of an API that gives each state of an object a
// version, as an API server does, and refuses what was made of an older one or is
// meant for another object of the name. Without versions nobody could tell that
// what a watch brings late is older than his own write.
func NewClient(t testing.TB, objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset()
	v := &versions{}
	v.ObjectTracker = &numbered{ObjectTracker: client.Tracker(), now: v.last.Load}
	client.PrependReactor("*", "*", clienttesting.ObjectReaction(v))
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := v.Watch(a.GetResource(), a.GetNamespace(), a.(clienttesting.WatchActionImpl).ListOptions)
		return true, w, err
	})
	for _, o := range objects {
		o = o.DeepCopyObject() // which is the caller's
		if err := errors.Join(v.next(o), v.Add(o)); err != nil {
			t.Fatal(err)
		}
	}
	return client
}

// Silence has no watch that begins later tell anything: what caches list at their
// start is all that they hear from others.
func Silence(client *fake.Clientset) {
	client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, watch.NewRaceFreeFake(), nil
	})
}

// Around has f stand in the place of every request but watches; do makes it.
func Around(
	client *fake.Clientset, f func(a clienttesting.Action, do func() (runtime.Object, error)) (runtime.Object, error),
) {
	chain := slices.Clone(client.ReactionChain)
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := f(a, func() (runtime.Object, error) {
			for _, r := range chain {
				if !r.Handles(a) {
					continue
				}
				if handled, o, err := r.React(a.DeepCopy()); handled {
					return o, err
				}
			}
			return nil, nil
		})
		return true, o, err
	})
}

type versions struct {
	clienttesting.ObjectTracker
	mu   sync.Mutex
	last atomic.Int64
}

// next gives an object the next version.
func (v *versions) next(o runtime.Object) error {
	a, err := meta.Accessor(o)
	if err == nil {
		a.SetResourceVersion(strconv.FormatInt(v.last.Add(1), 10))
	}
	return err
}

// check refuses an object that cannot take the place of the one that is there; a
// patch need not know its version.
func (v *versions) check(r schema.GroupVersionResource, o runtime.Object, namespace string, patch bool) error {
	now, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	there, err := v.Get(r, namespace, now.GetName())
	if err != nil {
		return err
	}
	before, err := meta.Accessor(there)
	if err != nil {
		return err
	}
	if uid := now.GetUID(); uid != before.GetUID() && uid != "" {
		return apierrors.NewConflict(r.GroupResource(), now.GetName(),
			fmt.Errorf("uid %s is asked for, it has %s", uid, before.GetUID()))
	}
	if version := now.GetResourceVersion(); version != before.GetResourceVersion() && version != "" && !patch {
		return apierrors.NewConflict(r.GroupResource(), now.GetName(),
			fmt.Errorf("it has version %s, not %s", before.GetResourceVersion(), version))
	}
	return nil
}

func (v *versions) Create(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.CreateOptions,
) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	o = o.DeepCopyObject() // which is the caller's
	return errors.Join(v.next(o), v.ObjectTracker.Create(r, o, namespace, opts...))
}

func (v *versions) Update(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.UpdateOptions,
) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.check(r, o, namespace, false); err != nil {
		return err
	}
	o = o.DeepCopyObject() // which is the caller's
	return errors.Join(v.next(o), v.ObjectTracker.Update(r, o, namespace, opts...))
}

// Patch is given what the caller of the API gets as its answer.
func (v *versions) Patch(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.PatchOptions,
) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.check(r, o, namespace, true); err != nil {
		return err
	}
	return errors.Join(v.next(o), v.ObjectTracker.Patch(r, o, namespace, opts...))
}

// Declared returns a client for a controller which fails the test when it asks for
// what no right of the controller allows.
func Declared(t testing.TB, client *fake.Clientset, rights func() []kube.Access) *fake.Clientset {
	check := func(a clienttesting.Action) {
		what := strings.TrimSuffix(a.GetResource().Resource+"/"+a.GetSubresource(), "/")
		if !slices.ContainsFunc(rights(), func(r kube.Access) bool {
			return r.Group == a.GetResource().Group && r.Resource == what && slices.Contains(r.Verbs, a.GetVerb())
		}) {
			t.Errorf("%s %s in group %q is not declared", a.GetVerb(), what, a.GetResource().Group)
		}
	}
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		check(a)
		o, err := fields(t, rights(), client.Tracker(), a, func() (runtime.Object, error) { return client.Invokes(a, nil) })
		return true, o, err
	})
	c.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		check(a)
		w, err := client.InvokesWatch(a)
		return true, w, err
	})
	return c
}
