package kubetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/kube"
)

// Server keeps objects as the API server does: each has an identity and versions,
// what would write over another version is refused, and what is deleted stays
// until its last finalizer is gone, or its node lets it go. It may be used in a
// bubble of synctest.
type Server struct {
	clienttesting.ObjectTracker
	mu      sync.Mutex
	version atomic.Int64
}

// NewServer returns a server that has no objects.
func NewServer() *Server {
	s := &Server{}
	s.ObjectTracker = &numbered{
		ObjectTracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()), now: s.version.Load,
	}
	return s
}

// Add makes an object.
func (s *Server) Add(o runtime.Object) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return s.Create(r, o, m.GetNamespace())
}

// Client returns a client that may do anything.
func (s *Server) Client() *fake.Clientset { return s.client(nil, nil) }

// client returns a client that may do what the rights say, or anything without
// any.
func (s *Server) client(t testing.TB, rights []kube.Access) *fake.Clientset {
	c, react := &fake.Clientset{}, clienttesting.ObjectReaction(s)
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if err := allowed(a, rights); err != nil {
			return true, nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		handled := true
		o, err := fields(t, rights, s.ObjectTracker, a, func() (o runtime.Object, err error) {
			handled, o, err = react(a)
			return o, err
		})
		if err != nil || o == nil {
			return handled, o, err
		}
		return handled, o, s.collect(a, o)
	})
	c.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		if err := allowed(a, rights); err != nil {
			return true, nil, err
		}
		w, err := s.Watch(a.GetResource(), a.GetNamespace(), a.(clienttesting.WatchActionImpl).ListOptions)
		return true, w, err
	})
	return c
}

func allowed(a clienttesting.Action, rights []kube.Access) error {
	resource := strings.TrimSuffix(a.GetResource().Resource+"/"+a.GetSubresource(), "/")
	if len(rights) == 0 || slices.ContainsFunc(rights, func(r kube.Access) bool {
		return r.Group == a.GetResource().Group && r.Resource == resource && slices.Contains(r.Verbs, a.GetVerb())
	}) {
		return nil
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), "",
		fmt.Errorf("%s of %s is not declared", a.GetVerb(), resource))
}

// Create keeps a new object.
func (s *Server) Create(
	r schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.CreateOptions,
) error {
	o = o.DeepCopyObject()
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	s.stamp(m)
	if m.GetUID() == "" {
		m.SetUID(types.UID("uid-" + m.GetResourceVersion()))
	}
	return s.ObjectTracker.Create(r, o, ns, opts...)
}

func (s *Server) stamp(m metav1.Object) {
	m.SetResourceVersion(strconv.FormatInt(s.version.Add(1), 10))
}

// Update writes over an object.
func (s *Server) Update(
	r schema.GroupVersionResource, o runtime.Object, ns string, opts ...metav1.UpdateOptions,
) error {
	o = o.DeepCopyObject()
	if err := s.prepare(r, o, ns); err != nil {
		return err
	}
	return s.ObjectTracker.Update(r, o, ns, opts...)
}

// Patch writes over an object what a patch has made of it.
func (s *Server) Patch(r schema.GroupVersionResource, o runtime.Object, ns string, _ ...metav1.PatchOptions) error {
	// The patched object itself is the answer.
	if err := s.prepare(r, o, ns); err != nil {
		return err
	}
	return s.ObjectTracker.Update(r, o, ns)
}

// prepare looks whether an object may be written, and makes it a new version.
func (s *Server) prepare(r schema.GroupVersionResource, o runtime.Object, ns string) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	before, err := s.object(r, ns, m.GetName())
	if err != nil {
		return err
	}
	if v := m.GetResourceVersion(); v != "" && v != before.GetResourceVersion() ||
		m.GetUID() != "" && m.GetUID() != before.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), m.GetName(),
			fmt.Errorf("version %s of %s is not %s of %s", v, m.GetUID(), before.GetResourceVersion(), before.GetUID()))
	}
	m.SetUID(before.GetUID())
	m.SetDeletionTimestamp(before.GetDeletionTimestamp())
	s.stamp(m)
	return nil
}

func (s *Server) object(r schema.GroupVersionResource, ns, name string) (metav1.Object, error) {
	o, err := s.Get(r, ns, name)
	if err != nil {
		return nil, err
	}
	return meta.Accessor(o)
}

// Delete takes an object away, or has it go when it may.
func (s *Server) Delete(r schema.GroupVersionResource, ns, name string, opts ...metav1.DeleteOptions) error {
	o, err := s.Get(r, ns, name)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	for _, d := range opts {
		if !holds(d.Preconditions, m) {
			return apierrors.NewConflict(r.GroupResource(), name,
				fmt.Errorf("it is version %s of %s", m.GetResourceVersion(), m.GetUID()))
		}
		if pod, ok := o.(*corev1.Pod); ok {
			pod.DeletionGracePeriodSeconds = graceOf(pod, d)
		}
	}
	if len(m.GetFinalizers()) == 0 && m.GetDeletionGracePeriodSeconds() == nil {
		return s.ObjectTracker.Delete(r, ns, name)
	}
	if now := metav1.Now(); m.GetDeletionTimestamp() == nil {
		m.SetDeletionTimestamp(&now)
	}
	s.stamp(m)
	return s.ObjectTracker.Update(r, o, ns)
}

// holds says whether an object is what a deletion is for.
func holds(p *metav1.Preconditions, m metav1.Object) bool {
	return p == nil || (p.UID == nil || *p.UID == m.GetUID()) &&
		(p.ResourceVersion == nil || *p.ResourceVersion == m.GetResourceVersion())
}

// graceOf returns how long the node of a Pod has for its end; nil is that it is not
// asked.
func graceOf(p *corev1.Pod, d metav1.DeleteOptions) *int64 {
	grace := ptr.Deref(d.GracePeriodSeconds, 30)
	if p.Spec.NodeName == "" || grace == 0 {
		return nil
	}
	return &grace
}

// collect takes away what was deleted and may go now.
func (s *Server) collect(a clienttesting.Action, o runtime.Object) error {
	if a.GetVerb() == "list" {
		return nil
	}
	m, err := meta.Accessor(o)
	if err != nil || m.GetDeletionTimestamp() == nil || len(m.GetFinalizers()) > 0 ||
		m.GetDeletionGracePeriodSeconds() != nil {
		return err
	}
	return s.ObjectTracker.Delete(a.GetResource(), a.GetNamespace(), m.GetName())
}

// Writes returns what a client has written, one line for each, without events.
func Writes(c *fake.Clientset) []string {
	var out []string
	for _, a := range c.Actions() {
		if text := written(a); text != "" && a.GetResource().Resource != "events" {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s %s", a.GetVerb(), a.GetResource().Resource)+"/"+
				a.GetSubresource(), "/")+" "+text)
		}
	}
	return out
}

func written(a clienttesting.Action) string {
	switch a := a.(type) {
	case clienttesting.PatchActionImpl:
		return a.Name + " " + string(a.Patch)
	case clienttesting.DeleteActionImpl:
		return a.Name + limits(a.DeleteOptions)
	case clienttesting.CreateActionImpl:
		return nameOf(a.Object)
	case clienttesting.UpdateActionImpl:
		return nameOf(a.Object)
	}
	return ""
}

func nameOf(o runtime.Object) string {
	if m, err := meta.Accessor(o); err == nil {
		return m.GetName()
	}
	return ""
}

// limits says what a deletion depends on.
func limits(d metav1.DeleteOptions) string {
	var out strings.Builder
	if p := d.Preconditions; p != nil && p.UID != nil {
		out.WriteString(" uid")
	}
	if p := d.Preconditions; p != nil && p.ResourceVersion != nil {
		out.WriteString(" version")
	}
	if g := d.GracePeriodSeconds; g != nil {
		fmt.Fprintf(&out, " grace %d", *g)
	}
	return out.String()
}
