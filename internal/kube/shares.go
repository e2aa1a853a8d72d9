package kube

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of what is remembered for later objects: so many values of each kind,
// none of which is longer.
const (
	maxShared       = 1024
	maxSharedLength = 512
)

// shares makes equal parts of different objects one, as nobody changes an
// object of a cache in place. Thousands of volumes have the same driver, class,
// size and finalizers, and a map of one entry takes some hundred bytes. It is
// safe for concurrent use.
type shares struct {
	texts      shared[string]
	pairs      shared[map[string]string]
	finalizers shared[[]string]
	modes      shared[[]corev1.PersistentVolumeAccessMode]
	amounts    shared[corev1.ResourceList]
	reaches    shared[*corev1.VolumeNodeAffinity]
	classes    shared[*string]
	kinds      shared[*corev1.PersistentVolumeMode]
}

// shared are values of one type, found by all that they say.
type shared[T any] struct {
	mu  sync.Mutex
	all map[string]T
}

// one returns the value that says the same, which is v for the first one. From
// then on others may read v.
func (s *shared[T]) one(says []byte, v T) T {
	return s.oneOf(says, func() T { return v })
}

// oneOf is one with a value that is made if it is the first.
func (s *shared[T]) oneOf(says []byte, first func() T) T {
	if len(says) > maxSharedLength {
		return first()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.all[string(says)]; ok {
		return was
	}
	// What is common comes again soon.
	if s.all == nil || len(s.all) == maxShared {
		s.all = map[string]T{}
	}
	v := first()
	s.all[string(says)] = v
	return v
}

// says adds a text to what a value says, so that no two values say the same.
func says[T ~string](all []byte, text T) []byte {
	return append(binary.AppendUvarint(all, uint64(len(text))), text...)
}

func (s *shares) text(v string) string {
	if v == "" {
		return v
	}
	return s.texts.one([]byte(v), v)
}

// meta does what objects of all kinds have.
func (s *shares) meta(o metav1.Object) {
	o.SetNamespace(s.text(o.GetNamespace()))
	o.SetLabels(s.pair(o.GetLabels()))
	o.SetAnnotations(s.pair(o.GetAnnotations()))
	o.SetFinalizers(texts(&s.finalizers, o.GetFinalizers()))
}

func (s *shares) claim(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes, c.Status.AccessModes = texts(&s.modes, c.Spec.AccessModes), texts(&s.modes, c.Status.AccessModes)
	c.Spec.Resources.Requests, c.Status.Capacity = s.amount(c.Spec.Resources.Requests), s.amount(c.Status.Capacity)
	c.Spec.StorageClassName, c.Spec.VolumeMode = pointer(&s.classes, c.Spec.StorageClassName),
		pointer(&s.kinds, c.Spec.VolumeMode)
	c.Status.Phase = corev1.PersistentVolumeClaimPhase(s.text(string(c.Status.Phase)))
}

func (s *shares) volume(v *corev1.PersistentVolume) {
	v.Spec.AccessModes, v.Spec.Capacity, v.Spec.VolumeMode = texts(&s.modes, v.Spec.AccessModes),
		s.amount(v.Spec.Capacity), pointer(&s.kinds, v.Spec.VolumeMode)
	v.Spec.StorageClassName = s.text(v.Spec.StorageClassName)
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(
		s.text(string(v.Spec.PersistentVolumeReclaimPolicy)))
	v.Status.Phase = corev1.PersistentVolumePhase(s.text(string(v.Status.Phase)))
	if r := v.Spec.ClaimRef; r != nil {
		r.Kind, r.APIVersion, r.Namespace = s.text(r.Kind), s.text(r.APIVersion), s.text(r.Namespace)
	}
	if c := v.Spec.CSI; c != nil {
		c.Driver, c.FSType, c.VolumeAttributes = s.text(c.Driver), s.text(c.FSType), s.pair(c.VolumeAttributes)
	}
	if reach := v.Spec.NodeAffinity; reach != nil {
		if all, err := reach.Marshal(); err == nil {
			v.Spec.NodeAffinity = s.reaches.one(all, reach)
		}
	}
}

// pair does the map of labels, annotations or attributes. The entries of one
// that is like no other have keys in common with others.
func (s *shares) pair(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var all []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = says(says(all, k), m[k])
	}
	return s.pairs.oneOf(all, func() map[string]string {
		own := make(map[string]string, len(m))
		for k, v := range m {
			own[s.text(k)] = v
		}
		return own
	})
}

func (s *shares) amount(l corev1.ResourceList) corev1.ResourceList {
	if len(l) == 0 {
		return l
	}
	var all []byte
	for _, k := range slices.Sorted(maps.Keys(l)) {
		q := l[k]
		all = says(says(says(all, k), q.Format), q.String())
	}
	return s.amounts.one(all, l)
}

func texts[T ~string](s *shared[[]T], l []T) []T {
	if len(l) == 0 {
		return l
	}
	var all []byte
	for _, v := range l {
		all = says(all, v)
	}
	return s.one(all, l)
}

func pointer[T ~string](s *shared[*T], p *T) *T {
	if p == nil {
		return nil
	}
	return s.one([]byte(*p), p)
}
