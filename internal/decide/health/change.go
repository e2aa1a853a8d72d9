package health

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Seen is what is known of a volume of a Pod, by its name in the Pod.
type Seen struct {
	Name string
	// Known means that the driver has reported the volume's health; otherwise the last report stays.
	Known      bool
	Conditions []corev1.VolumeHealthCondition
}

// OfPod returns the volumeHealth of a Pod's status, and whether it differs from that before. A volume that is healthy
// again keeps its entry, without conditions, to show since when.
func OfPod(
	before []corev1.PodVolumeHealth, volumes []Seen, now metav1.Time,
) (after []corev1.PodVolumeHealth, changed bool) {
	after = slices.Clone(before)
	for _, v := range volumes {
		i := slices.IndexFunc(after, func(h corev1.PodVolumeHealth) bool { return h.Name == v.Name })
		switch {
		case !v.Known, i < 0 && len(v.Conditions) == 0, i >= 0 && Same(after[i].HealthConditions, v.Conditions):
			continue
		case i < 0:
			i, after = len(after), append(after, corev1.PodVolumeHealth{})
		}
		after[i] = corev1.PodVolumeHealth{Name: v.Name, HealthConditions: v.Conditions, LastTransitionTime: now}
		changed = true
	}
	return after, changed
}

// Same says whether two lists have the same problems. A different message is not a change: a driver that puts a counter
// into its messages would cause a write each time.
func Same(a, b []corev1.VolumeHealthCondition) bool {
	return sameSet(a, b, func(c corev1.VolumeHealthCondition) corev1.VolumeHealthCondition {
		c.Message = ""
		return c
	})
}

// storageProblem distinguishes the problems of a storage.
type storageProblem struct {
	status storagev1.StorageHealthStatusType
	reason string
	access corev1.PersistentVolumeAccessMode
	mode   corev1.PersistentVolumeMode
}

func storageProblemOf(c storagev1.StorageHealthCondition) storageProblem {
	return storageProblem{c.Status, c.Reason, ptr.Deref(c.AccessMode, ""), ptr.Deref(c.VolumeMode, "")}
}

// OfNode returns the storageHealth of a node's CSINode with what a driver reports about its storage, and whether it
// differs from that before. A driver without problems has no entry.
func OfNode(
	before []storagev1.StorageHealth, driver string, conditions []storagev1.StorageHealthCondition, now metav1.Time,
) (after []storagev1.StorageHealth, changed bool) {
	var last []storagev1.StorageHealthCondition
	for _, h := range before {
		if h.Name == driver {
			last = h.HealthConditions
			continue
		}
		after = append(after, h)
	}
	if known := len(after) < len(before); sameSet(last, conditions, storageProblemOf) && known == (len(conditions) > 0) {
		return before, false
	}
	if len(conditions) == 0 {
		return after, true
	}
	entry := storagev1.StorageHealth{Name: driver}
	for _, c := range conditions {
		c.LastTransitionTime = now
		for _, was := range last {
			if storageProblemOf(was) == storageProblemOf(c) {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
		entry.HealthConditions = append(entry.HealthConditions, c)
	}
	return append(after, entry), true
}

// sameSet says whether two lists are the same, whatever their order.
func sameSet[T any, K comparable](a, b []T, key func(T) K) bool {
	set := map[K]bool{}
	for _, x := range a {
		set[key(x)] = true
	}
	found := map[K]bool{}
	for _, x := range b {
		if !set[key(x)] {
			return false
		}
		found[key(x)] = true
	}
	return len(found) == len(set)
}
