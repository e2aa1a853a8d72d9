package subject

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
)

// Finder finds the objects of a chain.
type Finder struct {
	View cluster.View
	// Namespace is the namespace of the chain's claim: volumes and attachments have none.
	Namespace string
	chain     chain.Chain
}

// Of returns the Finder of a chain; ns is the namespace in which the user asked.
func Of(view cluster.View, ns string, c chain.Chain) Finder {
	return Finder{View: view, Namespace: namespaceOf(view, ns, c), chain: c}
}

// namespaceOf returns the namespace of a chain's claim, or ns if it is not known.
func namespaceOf(view cluster.View, ns string, c chain.Chain) string {
	kind, name, _ := strings.Cut(c.Subject, "/")
	switch kind {
	case "namespace":
		return name
	case "volumeattachment":
		a := cluster.Find(view.Attachments, name)
		if a == nil || a.Spec.Source.PersistentVolumeName == nil {
			return ns
		}
		name = *a.Spec.Source.PersistentVolumeName
	case "pv":
	default:
		return ns
	}
	v := cluster.Find(view.Volumes, name)
	if v == nil || v.Spec.ClaimRef == nil {
		return ns
	}
	return v.Spec.ClaimRef.Namespace
}

// Claim returns the claim of the chain, and its name.
func (f Finder) Claim() (*corev1.PersistentVolumeClaim, string) {
	subjects := []string{f.chain.Subject}
	for _, l := range f.chain.Links {
		subjects = append(subjects, l.Subject)
	}
	for _, s := range subjects {
		if name, is := strings.CutPrefix(s, "pvc/"); is {
			return cluster.Find(f.View.Claims, f.Namespace+"/"+name), name
		}
	}
	return nil, "CLAIM"
}

// NamedPods returns the existing Pods that the chain is about.
func (f Finder) NamedPods() []*corev1.Pod {
	var out []*corev1.Pod
	add := func(subject string) {
		name, is := strings.CutPrefix(subject, "pod/")
		if p := cluster.Find(f.View.Pods, f.Namespace+"/"+name); is && p != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	add(f.chain.Subject)
	for _, l := range f.chain.Links {
		add(l.Subject)
	}
	return out
}

// Attachment returns a matching attachment that has the name, or that attaches the chain's claim to
// the node with the name; nil if there is none.
func (f Finder) Attachment(name string, match func(*storagev1.VolumeAttachment) bool) *storagev1.VolumeAttachment {
	if a := cluster.Find(f.View.Attachments, name); a != nil && match(a) {
		return a
	}
	claim, _ := f.Claim()
	if claim == nil {
		return nil
	}
	return cluster.First(f.View.Attachments.By(cluster.AttachmentsByVolume, claim.Spec.VolumeName),
		func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == name && match(a) })
}
