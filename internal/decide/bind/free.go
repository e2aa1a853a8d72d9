package bind

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
)

// Free holds the volumes that any claim may take, ordered so that the best one
// for a claim is found without a look at the others: those that are equal in
// all but size stand in one shelf by size. It is not safe for concurrent use.
type Free struct {
	shelves map[shelf][]*corev1.PersistentVolume
	// at is the shelf of each volume, by name.
	at map[string]placed
}

type shelf struct {
	class, attributes, modes string
	mode                     corev1.PersistentVolumeMode
}

type placed struct {
	shelf  shelf
	volume *corev1.PersistentVolume
}

// NewFree returns an empty set.
func NewFree() *Free {
	return &Free{shelves: map[shelf][]*corev1.PersistentVolume{}, at: map[string]placed{}}
}

// Set puts a volume where it belongs now, or takes it out if it is not free.
func (f *Free) Set(v *corev1.PersistentVolume) {
	f.Remove(v.Name)
	if !IsFree(v) {
		return
	}
	s := shelf{
		VolumeClassOf(v), attributes(v.Spec.VolumeAttributesClassName), modesOf(v.Spec.AccessModes), mode(v.Spec.VolumeMode),
	}
	i, _ := slices.BinarySearchFunc(f.shelves[s], v, bySize)
	f.shelves[s] = slices.Insert(f.shelves[s], i, v)
	f.at[v.Name] = placed{s, v}
}

// IsFree says whether any claim may take the volume.
func IsFree(v *corev1.PersistentVolume) bool {
	return v.Status.Phase == corev1.VolumeAvailable && v.Spec.ClaimRef == nil && v.DeletionTimestamp == nil
}

// Remove takes a volume out; it may be repeated.
func (f *Free) Remove(name string) {
	p, ok := f.at[name]
	if !ok {
		return
	}
	delete(f.at, name)
	if i, found := slices.BinarySearchFunc(f.shelves[p.shelf], p.volume, bySize); found {
		f.shelves[p.shelf] = slices.Delete(f.shelves[p.shelf], i, i+1)
	}
	if len(f.shelves[p.shelf]) == 0 {
		delete(f.shelves, p.shelf)
	}
}

// Best returns the volume that Match would choose of all that are held and that
// will do; nil is none. A nil function means that each of them will.
func (f *Free) Best(
	claim *corev1.PersistentVolumeClaim, willDo func(*corev1.PersistentVolume) bool,
) *corev1.PersistentVolume {
	class, _ := ClassOf(claim)
	selector := selectorOf(claim)
	request := claim.Spec.Resources.Requests.Storage()
	usable := func(v *corev1.PersistentVolume) bool {
		return selector.Matches(labels.Set(v.Labels)) && (willDo == nil || willDo(v))
	}
	var best *corev1.PersistentVolume
	for s, all := range f.shelves {
		if s.class != class || s.attributes != attributes(claim.Spec.VolumeAttributesClassName) ||
			s.mode != mode(claim.Spec.VolumeMode) ||
			!offers(all[0], claim.Spec.AccessModes) {
			continue
		}
		if v := smallest(all, request, usable); v != nil && (best == nil || better(v, best)) {
			best = v
		}
	}
	return best
}

// smallest returns the first of a shelf that is large enough and usable; nil is
// none.
func smallest(
	all []*corev1.PersistentVolume, request *resource.Quantity, usable func(*corev1.PersistentVolume) bool,
) *corev1.PersistentVolume {
	first := sort.Search(len(all), func(i int) bool { return all[i].Spec.Capacity.Storage().Cmp(*request) >= 0 })
	for _, v := range all[first:] {
		if usable(v) {
			return v
		}
	}
	return nil
}

// bySize orders as better does among volumes of one shelf.
func bySize(a, b *corev1.PersistentVolume) int {
	return cmp.Or(a.Spec.Capacity.Storage().Cmp(*b.Spec.Capacity.Storage()), cmp.Compare(a.Name, b.Name))
}

func modesOf(modes []corev1.PersistentVolumeAccessMode) string {
	var all []string
	for _, m := range modes {
		all = append(all, string(m))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}
