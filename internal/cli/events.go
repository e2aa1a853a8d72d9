package cli

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
)

// maxAsked is the number of objects up to which events are read object by object.
// For each such request the server scans all events of the namespace, so for more
// objects all events are read at once.
const maxAsked = 8

// involved is an object that events may be about; space is the namespace of the
// events.
type involved struct{ space, kind, name string }

// warningsAbout reads the warnings about all objects of a question.
func (r *reading) warningsAbout(ctx context.Context) error {
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
			reads = append(reads, r.warningsMatching(space, ",involvedObject.kind="+o.kind+",involvedObject.name="+o.name))
		}
	}
	return r.together(ctx, reads...)
}

// involved returns the objects of the question, the claims that were read, their
// Pods and classes, the volumes, and the attachments of the volumes.
func (r *reading) involved() []involved {
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
