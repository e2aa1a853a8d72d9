package cluster

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// MountPaths returns where the volumes of a Pod are mounted, by their names in the Pod, as its node agent says. It is
// nil while one of them is not.
func MountPaths(p *corev1.Pod) map[string]string {
	c := PodCondition(p, volume.ConditionVolumesMounted)
	if !IsTrue(c) {
		return nil
	}
	var paths map[string]string
	if json.Unmarshal([]byte(p.Annotations[volume.AnnPaths]), &paths) != nil {
		return earlierPaths(c.Message)
	}
	return paths
}

// earlierPaths reads the paths from the text of a condition that an earlier agent has written.
func earlierPaths(text string) map[string]string {
	paths := map[string]string{}
	for part := range strings.SplitSeq(text, ", ") {
		if name, path, ok := strings.Cut(part, "="); ok {
			paths[name] = path
		}
	}
	return paths
}

// PodCondition returns a Pod's condition of a type, nil if it has none.
func PodCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// IsTrue says whether a Pod has a condition, and it is true. One that is unknown is neither true nor false.
func IsTrue(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionTrue }

// IsFalse says whether a Pod has a condition, and it is false.
func IsFalse(c *corev1.PodCondition) bool { return c != nil && c.Status == corev1.ConditionFalse }

// Mounted says whether the node agent has all volumes of a Pod mounted.
func Mounted(p *corev1.Pod) bool { return IsTrue(PodCondition(p, volume.ConditionVolumesMounted)) }
