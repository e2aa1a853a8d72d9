package kubetest

import (
	"fmt"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// objects keeps objects and gives each write the next version, and each new object a UID if it has none. The tracker
// inside counts lists and the watches that follow them on its own.
type objects struct {
	clienttesting.ObjectTracker

	mu      sync.Mutex
	version int64
	// counts are those of the tracker at a version of ours.
	counts map[schema.GroupVersionResource]map[string]string
}

func newObjects() *objects {
	return &objects{
		ObjectTracker: clienttesting.NewObjectTracker(NewScheme(), scheme.Codecs.UniversalDecoder()),
		counts:        map[schema.GroupVersionResource]map[string]string{},
	}
}

// stamped returns a copy of an object, which the caller owns, with the next version. Events get none, and their number
// has no effect.
func (s *objects) stamped(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	if _, ok := o.(*corev1.Event); ok {
		return o
	}
	s.version++
	MetaOf(o).SetResourceVersion(strconv.FormatInt(s.version, 10))
	return o
}

// Add makes a client create an object.
func (s *objects) Add(o runtime.Object) error {
	return s.Create(ResourceOf(o), o, MetaOf(o).GetNamespace())
}

// Create keeps a new object.
func (s *objects) Create(
	r schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.CreateOptions,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = s.stamped(o)
	if m := MetaOf(o); m.GetUID() == "" {
		m.SetUID(types.UID(givenUID + m.GetResourceVersion()))
	}
	return s.ObjectTracker.Create(r, o, ns, opts...)
}

// Update makes a client replace an object, whichever version it knows.
func (s *objects) Update(
	r schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.UpdateOptions,
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = s.stamped(o)
	if now, err := s.Get(r, ns, MetaOf(o).GetName()); err == nil && MetaOf(o).GetUID() == "" {
		MetaOf(o).SetUID(MetaOf(now).GetUID())
	}
	return s.ObjectTracker.Update(r, o, ns, opts...)
}

// Patch replaces an object by the result of a patch, which is the answer.
func (s *objects) Patch(
	r schema.GroupVersionResource, o runtime.Object, ns string, _ ...metav1.PatchOptions,
) error {
	now, err := s.Get(r, ns, MetaOf(o).GetName())
	if err != nil {
		return err
	}
	if err := conflict(r, MetaOf(now), MetaOf(o)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stamped := s.stamped(o)
	MetaOf(o).SetResourceVersion(MetaOf(stamped).GetResourceVersion())
	return s.ObjectTracker.Update(r, stamped, ns)
}

// conflict refuses an object that is based on an older version, or is meant for an earlier object of the same name. An
// object without version and UID is always accepted.
func conflict(r schema.GroupVersionResource, now, o metav1.Object) error {
	version, uid := o.GetResourceVersion(), o.GetUID()
	if (version == "" || version == now.GetResourceVersion()) && (uid == "" || uid == now.GetUID()) {
		return nil
	}
	return apierrors.NewConflict(r.GroupResource(), now.GetName(), fmt.Errorf("it has version %s of uid %s, not %s of %s",
		now.GetResourceVersion(), now.GetUID(), version, uid))
}

// Delete removes an object unconditionally.
func (s *objects) Delete(r schema.GroupVersionResource, ns, name string, opts ...metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	return s.ObjectTracker.Delete(r, ns, name, opts...)
}

// List returns all objects of a kind.
func (s *objects) List(
	r schema.GroupVersionResource, k schema.GroupVersionKind, ns string, opts ...metav1.ListOptions,
) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.ObjectTracker.List(r, k, ns, opts...)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	version := strconv.FormatInt(s.version, 10)
	if s.counts[r] == nil {
		s.counts[r] = map[string]string{}
	}
	s.counts[r][version] = m.GetResourceVersion()
	m.SetResourceVersion(version)
	return list, nil
}

// Watch returns what happens after a list.
func (s *objects) Watch(
	r schema.GroupVersionResource, ns string, opts ...metav1.ListOptions,
) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	opts = slices.Clone(opts)
	for i := range opts {
		opts[i].ResourceVersion = s.counts[r][opts[i].ResourceVersion]
	}
	return s.ObjectTracker.Watch(r, ns, opts...)
}
