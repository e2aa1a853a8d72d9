package kubetest

import (
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// numbered gives lists versions that go with those of the objects. The tracker
// counts by itself, for lists and the watches that follow them only.
type numbered struct {
	clienttesting.ObjectTracker
	// now is the newest version of all objects.
	now func() int64

	mu sync.Mutex
	// counts are those of the tracker at a version of ours.
	counts map[schema.GroupVersionResource]map[string]string
}

// List returns all objects of a kind.
func (n *numbered) List(
	r schema.GroupVersionResource, k schema.GroupVersionKind, ns string, opts ...metav1.ListOptions,
) (runtime.Object, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	list, err := n.ObjectTracker.List(r, k, ns, opts...)
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	version := strconv.FormatInt(n.now(), 10)
	if n.counts == nil {
		n.counts = map[schema.GroupVersionResource]map[string]string{}
	}
	if n.counts[r] == nil {
		n.counts[r] = map[string]string{}
	}
	n.counts[r][version] = m.GetResourceVersion()
	m.SetResourceVersion(version)
	return list, nil
}

// Watch returns what happens after a list.
func (n *numbered) Watch(
	r schema.GroupVersionResource, ns string, opts ...metav1.ListOptions,
) (watch.Interface, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	opts = slices.Clone(opts)
	for i := range opts {
		opts[i].ResourceVersion = n.counts[r][opts[i].ResourceVersion]
	}
	return n.ObjectTracker.Watch(r, ns, opts...)
}
