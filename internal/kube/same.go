package kube

import (
	"sync"
	"weak"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sameObjects finds the object that another cache of the process already holds, so that each version of the most
// numerous kinds is in memory once, however many caches have decoded it. It keeps no object alive.
type sameObjects struct {
	pods        latest[corev1.Pod, *corev1.Pod]
	claims      latest[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	volumes     latest[corev1.PersistentVolume, *corev1.PersistentVolume]
	attachments latest[storagev1.VolumeAttachment, *storagev1.VolumeAttachment]
}

// pool finds the objects of one kind.
type pool interface {
	// find returns the object of the same version that is held, or nil.
	find(o any) any
	// hold returns the object of the same version that is held, otherwise o, which is held from then on.
	hold(o any) any
}

// whole returns the pool for an object of which only managed fields are removed; nil if objects are not shared.
func (s *sameObjects) whole(o any) pool {
	if s == nil {
		return nil
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		return &s.claims
	case *corev1.PersistentVolume:
		if o.Spec.CSI == nil {
			return nil // caches that translate show one, and others do not
		}
		return &s.volumes
	case *storagev1.VolumeAttachment:
		return &s.attachments
	}
	return nil
}

// trimmed returns the pool for an object that is trimmed; nil if objects are not shared.
func (s *sameObjects) trimmed(o any) pool {
	if _, ok := o.(*corev1.Pod); ok && s != nil {
		return &s.pods
	}
	return s.whole(o)
}

// fewObjects is the number of tracked objects of a kind below which it does not look for objects that are gone.
const fewObjects = 1024

// latest holds the newest known version of each object of one kind. It is safe for concurrent use.
type latest[T any, P interface {
	*T
	metav1.Object
}] struct {
	mu      sync.Mutex
	objects map[types.UID]weak.Pointer[T]
	// full is the number of objects at which those that are gone are removed.
	full int
}

func (h *latest[T, P]) find(o any) any {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.known(o.(P)); known != nil {
		return known
	}
	return nil
}

func (h *latest[T, P]) hold(o any) any {
	p := o.(P)
	// Objects of test fakes have no versions.
	if p.GetUID() == "" || p.GetResourceVersion() == "" {
		return p
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.known(p); known != nil {
		return known
	}
	if len(h.objects) >= h.full {
		h.forget()
	}
	h.objects[p.GetUID()] = weak.Make((*T)(p))
	return p
}

func (h *latest[T, P]) known(o P) P {
	if known := P(h.objects[o.GetUID()].Value()); known != nil && known.GetResourceVersion() == o.GetResourceVersion() {
		return known
	}
	return nil
}

// forget drops the objects that are not in memory any more. Between two calls their number at least doubles.
func (h *latest[T, P]) forget() {
	left := map[types.UID]weak.Pointer[T]{}
	for uid, w := range h.objects {
		if w.Value() != nil {
			left[uid] = w
		}
	}
	h.objects, h.full = left, fewObjects+2*len(left)
}
