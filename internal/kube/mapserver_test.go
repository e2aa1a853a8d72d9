package kube

import (
	"errors"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit/clientset"
)

var errLost = errors.New("connection lost")

// mapServer keeps ConfigMaps as an API server does, with resource versions, and
// decides of each write what becomes of it and of its answer.
type mapServer struct {
	objects map[string]*corev1.ConfigMap
	version int
	writes  int
	// fate says what happens to a write, arrives whether a late one comes before
	// it; changed is called after each change.
	fate    func() fate
	arrives func() bool
	changed func()
	// late are writes that are still on their way, ended says that the process cannot reach
	// the server any more.
	late  []func()
	ended bool
}

type fate int

const (
	goesWell fate = iota
	// conflicts: another client has written the object.
	conflicts
	// isRefused: the server refuses the write, isDropped: no answer arrives, and nothing is
	// done.
	isRefused
	isDropped
	// losesAnswer is done, comesLate will be.
	losesAnswer
	comesLate
	// endsBefore and endsAfter: the process is killed.
	endsBefore
	endsAfter
	fates
)

func newMapServer() (*mapServer, *fake.Clientset) {
	s := &mapServer{
		objects: map[string]*corev1.ConfigMap{}, fate: func() fate { return goesWell },
		arrives: func() bool { return false }, changed: func() {},
	}
	client := clientset.New()
	client.PrependReactor("*", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := s.react(a)
		return true, o, err
	})
	return s, client
}

func (s *mapServer) react(a clienttesting.Action) (runtime.Object, error) {
	if s.ended {
		return nil, errLost
	}
	if a.GetVerb() == "list" {
		list := &corev1.ConfigMapList{}
		for _, name := range slices.Sorted(maps.Keys(s.objects)) {
			list.Items = append(list.Items, *s.objects[name].DeepCopy())
		}
		return list, nil
	}
	s.writes++
	if s.arrives() {
		s.arrive()
	}
	return s.befalls(s.writer(a))
}

// befalls does a write as its fate has it.
func (s *mapServer) befalls(write func() (runtime.Object, error)) (runtime.Object, error) {
	f := s.fate()
	switch f {
	case conflicts:
		for _, o := range s.objects {
			o.ResourceVersion = s.next()
		}
	case isRefused:
		return nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", nil)
	case comesLate:
		s.late = append(s.late, func() { _, _ = write() })
	case endsBefore, endsAfter:
		s.ended = true
	case goesWell, isDropped, losesAnswer, fates:
	}
	switch f {
	case goesWell, conflicts:
		return write()
	case losesAnswer, endsAfter:
		_, _ = write()
	case isRefused, isDropped, comesLate, endsBefore, fates:
	}
	return nil, errLost
}

// arrive does the newest of the writes that are late.
func (s *mapServer) arrive() {
	if n := len(s.late); n > 0 {
		write := s.late[n-1]
		s.late = s.late[:n-1]
		write()
	}
}

func (s *mapServer) next() string { s.version++; return strconv.Itoa(s.version) }

// writer returns what does the write of an action, now or later.
func (s *mapServer) writer(a clienttesting.Action) func() (runtime.Object, error) {
	if d, ok := a.(clienttesting.DeleteAction); ok {
		name, only := d.GetName(), d.GetDeleteOptions().Preconditions
		return func() (runtime.Object, error) { return nil, s.remove(name, only) }
	}
	o := a.(clienttesting.CreateAction).GetObject().(*corev1.ConfigMap).DeepCopy()
	return func() (runtime.Object, error) { return s.write(o, a.GetVerb() == "create") }
}

func (s *mapServer) remove(name string, only *metav1.Preconditions) error {
	switch o := s.objects[name]; {
	case o == nil:
		return apierrors.NewNotFound(corev1.Resource("configmaps"), name)
	case *only.UID != o.UID, *only.ResourceVersion != o.ResourceVersion:
		return apierrors.NewConflict(corev1.Resource("configmaps"), name, nil)
	}
	delete(s.objects, name)
	s.changed()
	return nil
}

func (s *mapServer) write(o *corev1.ConfigMap, create bool) (runtime.Object, error) {
	resource, before := corev1.Resource("configmaps"), s.objects[o.Name]
	switch {
	case create && before != nil:
		return nil, apierrors.NewAlreadyExists(resource, o.Name)
	case create:
		o.UID = types.UID("uid-" + s.next())
	case before == nil:
		return nil, apierrors.NewNotFound(resource, o.Name)
	case o.ResourceVersion != before.ResourceVersion:
		return nil, apierrors.NewConflict(resource, o.Name, nil)
	case maps.Equal(before.Data, o.Data) && maps.Equal(before.Annotations, o.Annotations):
		// Nothing is written.
		return before.DeepCopy(), nil
	}
	o.ResourceVersion = s.next()
	s.objects[o.Name] = o
	s.changed()
	return o.DeepCopy(), nil
}

// has returns what stands on the server, and the keys that stand twice.
func (s *mapServer) has() (all map[string]string, twice []string) {
	all = map[string]string{}
	for _, o := range s.objects {
		for key, value := range o.Data {
			if _, ok := all[key]; ok {
				twice = append(twice, key)
			}
			all[key] = value
		}
	}
	return all, twice
}
