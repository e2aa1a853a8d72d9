package kubetest

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// write has a write done as Fate wants, and writes it down.
func (a *API) write(do func(clienttesting.Action) (runtime.Object, error)) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.count++
		words := strings.Join([]string{action.GetVerb(), resourceAsked(action), nameAsked(action)}, " ")
		a.writes = append(a.writes, words)
		done, answer := true, error(nil)
		if a.Fate != nil {
			done, answer = a.Fate(a.count, words)
		}
		if !done {
			return true, nil, answer
		}
		o, err := fields(a.t, a.rights, a.tracker, action, func() (runtime.Object, error) { return do(action) })
		if err != nil {
			return true, nil, err
		}
		if a.done = append(a.done, words); answer != nil {
			return true, nil, answer
		}
		return true, o, nil
	}
}

func (a *API) create(action clienttesting.Action) (runtime.Object, error) {
	o := action.(clienttesting.CreateActionImpl).Object
	if b, ok := o.(*corev1.Binding); ok {
		return o, a.bind(action, b)
	}
	if _, err := a.now(action, metaOf(o).GetName()); err == nil {
		return nil, apierrors.NewAlreadyExists(action.GetResource().GroupResource(), metaOf(o).GetName())
	}
	return a.keep(o, a.next()), nil
}

// bind gives a Pod its node.
func (a *API) bind(action clienttesting.Action, b *corev1.Binding) error {
	now, err := a.now(action, b.Name)
	if err != nil {
		return err
	}
	p := now.(*corev1.Pod)
	if b.UID != "" && b.UID != p.UID || p.Spec.NodeName != "" || b.Target.Kind != "Node" {
		return apierrors.NewConflict(action.GetResource().GroupResource(), b.Name,
			fmt.Errorf("pod of uid %s is on node %q", p.UID, p.Spec.NodeName))
	}
	p.Spec.NodeName = b.Target.Name
	a.keep(p, a.next())
	return nil
}

func (a *API) update(action clienttesting.Action) (runtime.Object, error) {
	o := action.(clienttesting.UpdateActionImpl).Object
	m := metaOf(o)
	now, err := a.now(action, m.GetName())
	if err != nil {
		return nil, err
	}
	if is := metaOf(now).GetResourceVersion(); m.GetResourceVersion() != is || m.GetUID() != metaOf(now).GetUID() {
		return nil, apierrors.NewConflict(action.GetResource().GroupResource(), m.GetName(),
			fmt.Errorf("the version is %s, not %s", is, m.GetResourceVersion()))
	}
	into, from := o, now
	if action.GetSubresource() == "status" {
		into, from = now, o
	}
	if f := reflect.ValueOf(into).Elem().FieldByName("Status"); f.IsValid() {
		f.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
	return a.keep(into, a.next()), nil
}

func (a *API) patch(action clienttesting.Action) (runtime.Object, error) {
	_, o, err := clienttesting.ObjectReaction(a.tracker)(action)
	if err != nil {
		return nil, err
	}
	return a.keep(o, a.next()), nil
}

func (a *API) remove(action clienttesting.Action) (runtime.Object, error) {
	d := action.(clienttesting.DeleteActionImpl)
	now, err := a.now(action, d.Name)
	if err != nil {
		return nil, err
	}
	if p := d.DeleteOptions.Preconditions; p != nil {
		m := metaOf(now)
		if p.UID != nil && *p.UID != m.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != m.GetResourceVersion() {
			return nil, apierrors.NewConflict(action.GetResource().GroupResource(), d.Name,
				fmt.Errorf("the version is %s of uid %s", m.GetResourceVersion(), m.GetUID()))
		}
	}
	return nil, a.tracker.Delete(action.GetResource(), action.GetNamespace(), d.Name)
}

// event takes an event, which is no write. One that is like an earlier one is
// counted on that.
func (a *API) event(action clienttesting.Action) (bool, runtime.Object, error) {
	c, ok := action.(clienttesting.CreateActionImpl)
	if !ok {
		a.told = append(a.told, a.events[action.(interface{ GetName() string }).GetName()])
		return true, &corev1.Event{}, nil
	}
	e := c.Object.(*corev1.Event)
	about := strings.TrimPrefix(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/")
	text := fmt.Sprintf("%s %s %s: %s", e.Type, about, e.Reason, e.Message)
	if next := e.Annotations[volume.AnnNext]; next != "" {
		text += " (" + next + ")"
	}
	a.told, a.events[e.Name] = append(a.told, text), text
	return true, e, nil
}

func (a *API) now(action clienttesting.Action, name string) (runtime.Object, error) {
	return a.tracker.Get(action.GetResource(), action.GetNamespace(), name)
}

func (a *API) next() string {
	return strconv.FormatInt(a.version.Add(1), 10)
}

// keep puts a copy of an object of a version in the place of what there is of it.
func (a *API) keep(o runtime.Object, version string) runtime.Object {
	a.t.Helper()
	o = o.DeepCopyObject()
	m := metaOf(o)
	m.SetResourceVersion(version)
	keep := func() error { return a.tracker.Create(resourceOf(o), o, m.GetNamespace()) }
	if _, err := a.tracker.Get(resourceOf(o), m.GetNamespace(), m.GetName()); err == nil {
		keep = func() error { return a.tracker.Update(resourceOf(o), o, m.GetNamespace()) }
	}
	if err := keep(); err != nil {
		a.t.Error(err)
	}
	return o
}

func metaOf(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return m
}

func resourceOf(o runtime.Object) schema.GroupVersionResource {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		panic(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource
}

// resourceAsked is the resource of an action with its subresource.
func resourceAsked(action clienttesting.Action) string {
	return strings.TrimSuffix(action.GetResource().Resource+"/"+action.GetSubresource(), "/")
}

func nameAsked(action clienttesting.Action) string {
	switch x := action.(type) {
	case clienttesting.CreateActionImpl:
		return cluster.Key(metaOf(x.Object))
	case clienttesting.UpdateActionImpl:
		return cluster.Key(metaOf(x.Object))
	case interface{ GetName() string }:
		return strings.TrimPrefix(action.GetNamespace()+"/"+x.GetName(), "/")
	}
	return ""
}
