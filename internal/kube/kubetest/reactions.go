package kubetest

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// givenUID is the prefix of each UID that this API assigns.
const givenUID = "uid-"

// write performs a write as Fate decides, and records it; an event does not count as a write.
func (a *API) write(do func(clienttesting.Action) (runtime.Object, error)) clienttesting.ReactionFunc {
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		w := a.described(action)
		var o runtime.Object
		if action.GetResource().Resource == "events" {
			if o, w.Err = do(action); w.Err == nil {
				a.hear(o.(*corev1.Event))
			}
		} else {
			o = a.decide(&w, action, do)
		}
		if w.After = o; a.Seen != nil {
			a.Seen(w)
		}
		if w.Err != nil {
			o = nil
		}
		return true, o, w.Err
	}
}

// described is a write before it is done.
func (a *API) described(action clienttesting.Action) Write {
	w := Write{Verb: action.GetVerb(), Resource: resourceAsked(action), Name: nameAsked(action)}
	_, name, _ := strings.Cut("/"+w.Name, action.GetNamespace()+"/")
	if now, err := a.now(action, name); err == nil {
		w.Before = now
	}
	if d, ok := action.(clienttesting.DeleteActionImpl); ok {
		w.Limits = limits(d.DeleteOptions)
	}
	return w
}

// decide performs a write according to Fate.
func (a *API) decide(
	w *Write, action clienttesting.Action, do func(clienttesting.Action) (runtime.Object, error),
) runtime.Object {
	words := strings.Join([]string{w.Verb, w.Resource, w.Name}, " ")
	n := a.asked(words)
	done, answer := true, error(nil)
	if a.Fate != nil {
		done, answer = a.Fate(n, words)
	}
	if w.Err = answer; !done {
		return nil
	}
	o, err := do(action)
	if err != nil {
		w.Err = err
		return nil
	}
	w.Done = true
	a.mu.Lock()
	defer a.mu.Unlock()
	a.done = append(a.done, words)
	return o
}

// asked records a write, and returns its number.
func (a *API) asked(words string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count++
	a.writes = append(a.writes, words)
	return a.count
}

func (a *API) hear(e *corev1.Event) {
	about := strings.TrimPrefix(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/")
	text := fmt.Sprintf("%s %s %s: %s", e.Type, about, e.Reason, volume.MessageOf(e.Message, e.Annotations))
	if next := e.Annotations[volume.AnnNext]; next != "" {
		text += " (" + next + ")"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, text)
}

func (a *API) create(action clienttesting.Action) (runtime.Object, error) {
	asked := action.(clienttesting.CreateActionImpl)
	switch o := asked.Object.(type) {
	case *corev1.Binding:
		return o, a.bind(action, o)
	case *corev1.Event:
		// Its name is derived from the time, which stands still in a bubble.
		e := o.DeepCopy()
		for n := 2; ; n++ {
			if _, err := a.now(action, e.Name); err != nil {
				break
			}
			e.Name = fmt.Sprint(o.Name, ".", n)
		}
		asked.Object = e
	}
	_, o, err := clienttesting.ObjectReaction(a.objects)(asked)
	return o, err
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
	_, err = a.keep(action, p)
	return err
}

func (a *API) update(action clienttesting.Action) (runtime.Object, error) {
	o := action.(clienttesting.UpdateActionImpl).Object.DeepCopyObject()
	m := MetaOf(o)
	now, err := a.now(action, m.GetName())
	if err != nil {
		return nil, err
	}
	before := MetaOf(now)
	if err := conflict(action.GetResource(), before, m); err != nil {
		return nil, err
	}
	m.SetUID(before.GetUID())
	m.SetDeletionTimestamp(before.GetDeletionTimestamp())
	into, from := o, now
	if action.GetSubresource() == "status" {
		into, from = now, o
	}
	if f := reflect.ValueOf(into).Elem().FieldByName("Status"); f.IsValid() {
		f.Set(reflect.ValueOf(from).Elem().FieldByName("Status"))
	}
	return a.keep(action, into)
}

func (a *API) patch(action clienttesting.Action) (runtime.Object, error) {
	_, o, err := clienttesting.ObjectReaction(a.objects)(action)
	if err != nil {
		return nil, err
	}
	return o, a.collect(action.GetResource(), o)
}

// remove deletes an object, or marks it as being deleted.
func (a *API) remove(action clienttesting.Action) (runtime.Object, error) {
	d := action.(clienttesting.DeleteActionImpl)
	now, err := a.now(action, d.Name)
	if err != nil {
		return nil, err
	}
	return now, a.end(action.GetResource(), now, d.DeleteOptions)
}

// end deletes an object as soon as nothing keeps it.
func (a *API) end(r schema.GroupVersionResource, now runtime.Object, d metav1.DeleteOptions) error {
	m := MetaOf(now)
	if p := d.Preconditions; p != nil {
		if err := conflict(r, m, &metav1.ObjectMeta{
			UID: ptr.Deref(p.UID, ""), ResourceVersion: ptr.Deref(p.ResourceVersion, ""),
		}); err != nil {
			return err
		}
	}
	if pod, ok := now.(*corev1.Pod); ok {
		pod.DeletionGracePeriodSeconds = graceOf(pod, d)
	}
	if m.GetDeletionTimestamp() == nil {
		m.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	}
	if stays(m) {
		return a.objects.Update(r, now, m.GetNamespace())
	}
	return a.objects.Delete(r, m.GetNamespace(), m.GetName())
}

// graceOf returns the grace period for a Pod's node; nil means that the node takes no part.
func graceOf(p *corev1.Pod, d metav1.DeleteOptions) *int64 {
	grace := ptr.Deref(d.GracePeriodSeconds, 30)
	if p.Spec.NodeName == "" || grace == 0 {
		return nil
	}
	return &grace
}

func (a *API) now(action clienttesting.Action, name string) (runtime.Object, error) {
	return a.objects.Get(action.GetResource(), action.GetNamespace(), name)
}

// keep replaces an object, and returns it as it is now.
func (a *API) keep(action clienttesting.Action, o runtime.Object) (runtime.Object, error) {
	m, r := MetaOf(o), action.GetResource()
	if err := a.objects.Update(r, o, m.GetNamespace()); err != nil {
		return nil, err
	}
	o, err := a.objects.Get(r, m.GetNamespace(), m.GetName())
	if err != nil {
		return nil, err
	}
	return o, a.collect(r, o)
}

// collect removes objects that were deleted and that nothing keeps any more.
func (a *API) collect(r schema.GroupVersionResource, o runtime.Object) error {
	m := MetaOf(o)
	if m.GetDeletionTimestamp() == nil || stays(m) {
		return nil
	}
	return a.objects.Delete(r, m.GetNamespace(), m.GetName())
}

// stays says whether an object that is deleted stays for now.
func stays(m metav1.Object) bool {
	return len(m.GetFinalizers()) > 0 || m.GetDeletionGracePeriodSeconds() != nil
}

// MetaOf returns an object's metadata.
func MetaOf(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return m
}

// ResourceOf is the resource of a kind of objects.
func ResourceOf(o runtime.Object) schema.GroupVersionResource {
	kinds, _, err := NewScheme().ObjectKinds(o)
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
		return cluster.Key(MetaOf(x.Object))
	case clienttesting.UpdateActionImpl:
		return cluster.Key(MetaOf(x.Object))
	case interface{ GetName() string }:
		return strings.TrimPrefix(action.GetNamespace()+"/"+x.GetName(), "/")
	}
	return ""
}
