package bind

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"

	"volplane.dev/volplane/internal/volume"
)

// Free is the set of volumes that any claim may take. It groups volumes that differ only in size, and orders each group
// by size, which finds the best one for a claim without comparing all. It is not safe for concurrent use.
type Free struct {
	groups map[group][]*corev1.PersistentVolume
	// members holds the volumes by name.
	members map[string]member
}

// group has the properties that its volumes have in common.
type group struct {
	class, attributes, accessModes string
	mode                           corev1.PersistentVolumeMode
}

type member struct {
	group  group
	volume *corev1.PersistentVolume
}

// NewFree returns an empty set.
func NewFree() *Free {
	return &Free{groups: map[group][]*corev1.PersistentVolume{}, members: map[string]member{}}
}

// Set adds or replaces a volume, or removes it if it is not free.
func (f *Free) Set(v *corev1.PersistentVolume) {
	f.Remove(v.Name)
	if !IsFree(v) {
		return
	}
	g := group{
		VolumeClassOf(v), attributes(v.Spec.VolumeAttributesClassName), modesOf(v.Spec.AccessModes), mode(v.Spec.VolumeMode),
	}
	i, _ := slices.BinarySearchFunc(f.groups[g], v, bySize)
	f.groups[g] = slices.Insert(f.groups[g], i, v)
	f.members[v.Name] = member{g, v}
}

// IsFree says whether any claim may take the volume.
func IsFree(v *corev1.PersistentVolume) bool {
	return v.Status.Phase == corev1.VolumeAvailable && v.Spec.ClaimRef == nil && v.DeletionTimestamp == nil &&
		v.Annotations[volume.AnnLostWith] == ""
}

// Remove removes a volume; it may be repeated.
func (f *Free) Remove(name string) {
	m, ok := f.members[name]
	if !ok {
		return
	}
	delete(f.members, name)
	if i, found := slices.BinarySearchFunc(f.groups[m.group], m.volume, bySize); found {
		f.groups[m.group] = slices.Delete(f.groups[m.group], i, i+1)
	}
	if len(f.groups[m.group]) == 0 {
		delete(f.groups, m.group)
	}
}

// Best returns the volume of the set that Match would choose for a claim from those that filter
// accepts, or nil. A nil filter accepts all.
func (f *Free) Best(
	claim *corev1.PersistentVolumeClaim, filter func(*corev1.PersistentVolume) bool,
) *corev1.PersistentVolume {
	class, _ := ClassOf(claim)
	selector := selectorOf(claim)
	request := claim.Spec.Resources.Requests.Storage()
	usable := func(v *corev1.PersistentVolume) bool {
		return selector.Matches(labels.Set(v.Labels)) && (filter == nil || filter(v))
	}
	var best *corev1.PersistentVolume
	for g, all := range f.groups {
		if g.class != class || g.attributes != attributes(claim.Spec.VolumeAttributesClassName) ||
			g.mode != mode(claim.Spec.VolumeMode) || !offers(all[0], claim.Spec.AccessModes) {
			continue
		}
		if v := smallest(all, request, usable); v != nil && (best == nil || better(v, best)) {
			best = v
		}
	}
	return best
}

// smallest returns the first volume of a group that is large enough and usable, or nil.
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

// bySize orders the volumes of a group in the same way as better.
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
