package gather

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Use is one use of a claim by a Pod.
type Use struct {
	Claim     string `json:"claim"`
	Namespace string `json:"namespace"`
	Node      string `json:"node,omitempty"`
	// Path is where the volume is mounted, or is to be.
	Path string `json:"path,omitempty"`
	// At is where the node agent mounts it, which is another path only if an automount waits at Path.
	At  string `json:"-"`
	Pod string `json:"pod"`
	// Since is the time since when all volumes of the Pod are mounted; nil while they are not.
	Since *metav1.Time `json:"since,omitempty"`
}

// UsesOf returns the uses of claims by a Pod that has a node and has not ended.
func UsesOf(p *corev1.Pod) []Use {
	if p.Spec.NodeName == "" || cluster.Finished(p) {
		return nil
	}
	paths, since := MountPaths(p)
	var out []Use
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		claim := cluster.ClaimName(p, v)
		if claim == "" {
			continue
		}
		out = append(out, Use{
			Claim: claim, Namespace: p.Namespace, Node: p.Spec.NodeName, Pod: p.Name, Since: since,
			Path: cmp.Or(volume.AskedPath(p.Annotations), paths[v.Name]),
			At:   cmp.Or(p.Annotations[volume.AnnMountAt], paths[v.Name]),
		})
	}
	return out
}

// MountPaths returns where the volumes of a Pod are mounted, by their names in the Pod, and since when all are; nil
// while one is not.
func MountPaths(p *corev1.Pod) (map[string]string, *metav1.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type != volume.ConditionVolumesMounted || c.Status != corev1.ConditionTrue {
			continue
		}
		paths := map[string]string{}
		for part := range strings.SplitSeq(c.Message, ", ") {
			if name, path, ok := strings.Cut(part, "="); ok {
				paths[name] = path
			}
		}
		return paths, &c.LastTransitionTime
	}
	return nil, nil
}
