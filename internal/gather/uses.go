package gather

import (
	"cmp"

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
	paths := cluster.MountPaths(p)
	var since *metav1.Time
	if c := cluster.PodCondition(p, volume.ConditionVolumesMounted); cluster.IsTrue(c) {
		since = &c.LastTransitionTime
	}
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
