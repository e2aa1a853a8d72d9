package node

import (
	"errors"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// versions gives each state of an object a version, as an API server does. Without
// them nobody could tell that what a watch brings late is older than his own write.
type versions struct {
	clienttesting.ObjectTracker
	last *atomic.Int64
}

// versioned answers reads and writes from a tracker, with versions.
func versioned(tracker clienttesting.ObjectTracker) clienttesting.ReactionFunc {
	return clienttesting.ObjectReaction(versions{tracker, &atomic.Int64{}})
}

// next gives an object the next version.
func (v versions) next(o runtime.Object) error {
	a, err := meta.Accessor(o)
	if err == nil {
		a.SetResourceVersion(strconv.FormatInt(v.last.Add(1), 10))
	}
	return err
}

func (v versions) Create(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.CreateOptions,
) error {
	o = o.DeepCopyObject() // which is the caller's
	return errors.Join(v.next(o), v.ObjectTracker.Create(r, o, namespace, opts...))
}

func (v versions) Update(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.UpdateOptions,
) error {
	o = o.DeepCopyObject() // which is the caller's
	return errors.Join(v.next(o), v.ObjectTracker.Update(r, o, namespace, opts...))
}

// Patch is given what the caller of the API gets as its answer.
func (v versions) Patch(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.PatchOptions,
) error {
	return errors.Join(v.next(o), v.ObjectTracker.Patch(r, o, namespace, opts...))
}
