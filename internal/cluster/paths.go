package cluster

import (
	"encoding/json"
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
