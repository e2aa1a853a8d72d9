package gather

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/volume"
)

// maxAsked is the number of objects up to which events are read object by object. For each such request the server
// scans all events of the namespace, so for more objects all events are read with one list.
const maxAsked = 8

// involved is an object that events may be about; space is the namespace of the events.
type involved struct{ space, kind, name string }

// warningsAbout reads the warnings about all objects of a question.
func (r *Facts) warningsAbout(ctx context.Context) error {
	bySpace := map[string][]involved{}
	for _, o := range r.involved() {
		bySpace[o.space] = append(bySpace[o.space], o)
	}
	var reads []read
	for space, objects := range bySpace {
		if len(objects) > maxAsked {
			reads = append(reads, r.warningsMatching(space, ""))
			continue
		}
		for _, o := range objects {
			reads = append(reads, r.warningsMatching(space, o.selector()))
		}
		if r.unused(space) {
			reads = append(reads, r.warningsMatching(space, ",involvedObject.kind=Pod,reason="+string(volume.ReasonNodeGone)))
		}
	}
	return r.together(ctx, reads...)
}

// selector returns what selects events about the object.
func (o involved) selector() string {
	return ",involvedObject.kind=" + o.kind + ",involvedObject.name=" + o.name
}

// unused says whether no Pod that was read uses some bound claim of a namespace, and its volume is not attached: its
// Pod may have been deleted. While the volume is attached, its node is explained anyway. To find the event of a Pod
// whose name is not known, the API server scans all events of the namespace.
func (r *Facts) unused(ns string) bool {
	return slices.ContainsFunc(r.Claims, func(c *corev1.PersistentVolumeClaim) bool {
		if c.Namespace != ns || c.Spec.VolumeName == "" {
			return false
		}
		attached := slices.ContainsFunc(r.Attachments, func(a *storagev1.VolumeAttachment) bool {
			return ptr.Deref(a.Spec.Source.PersistentVolumeName, "") == c.Spec.VolumeName
		})
		return !attached && !slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool {
			return p.Namespace == ns && slices.Contains(cluster.ClaimNames(p), c.Name)
		})
	})
}

// involved returns the objects of the question, the claims that were read, their
// Pods and classes, the volumes, and the attachments of the volumes.
func (r *Facts) involved() []involved {
	out, claims, classes := slices.Clone(r.asked), map[string]bool{}, map[string]bool{}
	for _, c := range r.Claims {
		claims[cluster.Key(c)] = true
		out = append(out, involved{c.Namespace, "PersistentVolumeClaim", c.Name})
		if class, named := bind.ClassOf(c); named && c.Spec.VolumeName == "" {
			classes[class] = true
		}
	}
	for _, p := range r.Pods {
		uses := func(claim string) bool { return claims[p.Namespace+"/"+claim] }
		if o := (involved{p.Namespace, "Pod", p.Name}); slices.ContainsFunc(cluster.ClaimNames(p),
			uses) && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	for _, c := range r.Classes {
		if classes[c.Name] {
			out = append(out, involved{metav1.NamespaceDefault, "StorageClass", c.Name})
		}
	}
	for _, v := range r.Volumes {
		out = append(out, involved{metav1.NamespaceDefault, "PersistentVolume", v.Name})
	}
	for _, a := range r.Attachments {
		out = append(out, involved{metav1.NamespaceDefault, "VolumeAttachment", a.Name})
	}
	return out
}

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
