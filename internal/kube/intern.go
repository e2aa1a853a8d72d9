package kube

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
)

// Limits of each pool: how many values it holds, and how many bytes the key of a value may have.
const (
	maxInterned       = 1024
	maxInternedLength = 512
)

// interner replaces equal parts of different objects by one shared value, which is safe because
// cached objects are never changed in place. Thousands of volumes have the same driver, class,
// size and finalizers, and a map of one entry takes some hundred bytes. It is safe for concurrent
// use.
type interner struct {
	texts       internPool[string]
	stringMaps  internPool[map[string]string]
	finalizers  internPool[[]string]
	accessModes internPool[[]corev1.PersistentVolumeAccessMode]
	resources   internPool[corev1.ResourceList]
	affinities  internPool[*corev1.VolumeNodeAffinity]
	classes     internPool[*string]
	volumeModes internPool[*corev1.PersistentVolumeMode]
}

// internPool holds values of one type by a key that is equal for equal values only.
type internPool[T any] struct {
	mu     sync.Mutex
	values map[string]T
}

// intern returns the pool's value for the key. Without one, it returns v, which is shared from then on.
func (s *internPool[T]) intern(key []byte, v T) T {
	return s.internFunc(key, func() T { return v })
}

// internFunc is intern with a value that is created only if the pool has none.
func (s *internPool[T]) internFunc(key []byte, first func() T) T {
	if len(key) > maxInternedLength {
		return first()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.values[string(key)]; ok {
		return known
	}
	// A full pool is emptied: values that are common soon return.
	if s.values == nil || len(s.values) == maxInterned {
		s.values = map[string]T{}
	}
	v := first()
	s.values[string(key)] = v
	return v
}

// appendKey appends a text to the key of a value, with its length, so that different values have
// different keys.
func appendKey[T ~string](all []byte, text T) []byte {
	return append(binary.AppendUvarint(all, uint64(len(text))), text...)
}

func (s *interner) text(v string) string {
	if v == "" {
		return v
	}
	return s.texts.intern([]byte(v), v)
}

// meta interns the metadata that objects of all kinds have.
func (s *interner) meta(o metav1.Object) {
	o.SetNamespace(s.text(o.GetNamespace()))
	o.SetLabels(s.stringMap(o.GetLabels()))
	o.SetAnnotations(s.stringMap(o.GetAnnotations()))
	o.SetFinalizers(stringSlice(&s.finalizers, o.GetFinalizers()))
}

func (s *interner) claim(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes = stringSlice(&s.accessModes, c.Spec.AccessModes)
	c.Status.AccessModes = stringSlice(&s.accessModes, c.Status.AccessModes)
	c.Spec.Resources.Requests = s.resourceList(c.Spec.Resources.Requests)
	c.Status.Capacity = s.resourceList(c.Status.Capacity)
	c.Spec.StorageClassName, c.Spec.VolumeMode = stringPointer(&s.classes, c.Spec.StorageClassName),
		stringPointer(&s.volumeModes, c.Spec.VolumeMode)
	c.Status.Phase = corev1.PersistentVolumeClaimPhase(s.text(string(c.Status.Phase)))
}

func (s *interner) volume(v *corev1.PersistentVolume) {
	v.Spec.AccessModes, v.Spec.Capacity, v.Spec.VolumeMode = stringSlice(&s.accessModes, v.Spec.AccessModes),
		s.resourceList(v.Spec.Capacity), stringPointer(&s.volumeModes, v.Spec.VolumeMode)
	v.Spec.StorageClassName = s.text(v.Spec.StorageClassName)
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(
		s.text(string(v.Spec.PersistentVolumeReclaimPolicy)))
	v.Status.Phase = corev1.PersistentVolumePhase(s.text(string(v.Status.Phase)))
	if r := v.Spec.ClaimRef; r != nil {
		r.Kind, r.APIVersion, r.Namespace = s.text(r.Kind), s.text(r.APIVersion), s.text(r.Namespace)
	}
	if c := v.Spec.CSI; c != nil {
		c.Driver, c.FSType, c.VolumeAttributes = s.text(c.Driver), s.text(c.FSType), s.stringMap(c.VolumeAttributes)
	}
	if affinity := v.Spec.NodeAffinity; affinity != nil {
		if all, err := affinity.Marshal(); err == nil {
			v.Spec.NodeAffinity = s.affinities.intern(all, affinity)
		}
	}
}

// kind interns the names of an object's kind, which custom resources have in each object.
func (s *interner) kind(t *metav1.TypeMeta) {
	t.Kind, t.APIVersion = s.text(t.Kind), s.text(t.APIVersion)
}

func (s *interner) snapshot(o *snapshotv1.VolumeSnapshot) {
	s.kind(&o.TypeMeta)
	o.Spec.VolumeSnapshotClassName = stringPointer(&s.classes, o.Spec.VolumeSnapshotClassName)
}

func (s *interner) content(o *cluster.VolumeSnapshotContent) {
	s.kind(&o.TypeMeta)
	o.Spec.Driver, o.Spec.DeletionPolicy = s.text(o.Spec.Driver), snapshotv1.DeletionPolicy(
		s.text(string(o.Spec.DeletionPolicy)))
	o.Spec.VolumeSnapshotClassName, o.Spec.SourceVolumeMode = stringPointer(&s.classes, o.Spec.VolumeSnapshotClassName),
		stringPointer(&s.volumeModes, o.Spec.SourceVolumeMode)
	r := &o.Spec.VolumeSnapshotRef
	r.Kind, r.APIVersion, r.Namespace = s.text(r.Kind), s.text(r.APIVersion), s.text(r.Namespace)
}

// stringMap interns labels, annotations or attributes. A map that is like no other still shares its
// keys and values.
func (s *interner) stringMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return m
	}
	var all []byte
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = appendKey(appendKey(all, k), m[k])
	}
	return s.stringMaps.internFunc(all, func() map[string]string {
		own := make(map[string]string, len(m))
		for k, v := range m {
			own[s.text(k)] = v
		}
		return own
	})
}

func (s *interner) resourceList(l corev1.ResourceList) corev1.ResourceList {
	if len(l) == 0 {
		return l
	}
	var all []byte
	for _, k := range slices.Sorted(maps.Keys(l)) {
		q := l[k]
		all = appendKey(appendKey(appendKey(all, k), q.Format), q.String())
	}
	return s.resources.intern(all, l)
}

func stringSlice[T ~string](s *internPool[[]T], l []T) []T {
	if len(l) == 0 {
		return l
	}
	var all []byte
	for _, v := range l {
		all = appendKey(all, v)
	}
	return s.intern(all, l)
}

func stringPointer[T ~string](s *internPool[*T], p *T) *T {
	if p == nil {
		return nil
	}
	return s.intern([]byte(*p), p)
}
