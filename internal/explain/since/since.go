package since

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/subject"
)

// Times knows since when links do not hold.
type Times struct {
	warnings state.Warnings
	view     cluster.View
}

// TimesOf returns what the objects tell.
func TimesOf(o state.Objects) Times { return Times{o.Warnings, o.View()} }

// Since returns since when a link does not hold, as far as the objects tell: by a
// condition of the same reason, by the first of its warnings, by the deletion that is
// not finished, or else since the object is there. It is zero for a link that holds,
// and when nothing is known.
func (t Times) Since(ns string, c chain.Chain, l chain.Link) time.Time {
	if l.State == chain.OK {
		return time.Time{}
	}
	of := subject.Of(t.view, ns, c)
	kind, name, _ := strings.Cut(l.Subject, "/")
	switch kind {
	case "pvc", "resize":
		return t.sinceOf(objectOf(cluster.Found(t.view.Claims, of.Namespace+"/"+name)), l)
	case "pod":
		return t.sincePod(cluster.Found(t.view.Pods, of.Namespace+"/"+name), l)
	case "node":
		return t.sinceNode(name)
	case "pv":
		if v := cluster.Found(t.view.Volumes, name); v != nil {
			return t.sinceOf(v, l)
		}
		claim, _ := of.Claim() // of a claim that has no volume yet
		return t.sinceOf(objectOf(claim), l)
	case "storageclass", "csidriver":
		claim, _ := of.Claim() // which waits for it
		return t.sinceOf(objectOf(claim), l)
	case "attachment", "volumeattachment":
		return t.sinceOf(objectOf(of.Attachment(name, func(*storagev1.VolumeAttachment) bool { return true })), l)
	}
	return time.Time{}
}

// objectOf returns nil for an object that is not there, whatever its type.
func objectOf[T any, P interface {
	*T
	metav1.Object
}](o P,
) metav1.Object {
	if o == nil {
		return nil
	}
	return o
}

func (t Times) sinceOf(o metav1.Object, l chain.Link) time.Time {
	switch {
	case o == nil:
		return time.Time{}
	case o.GetDeletionTimestamp() != nil:
		return o.GetDeletionTimestamp().Time
	}
	for _, e := range t.warnings {
		if e.InvolvedObject.UID == o.GetUID() && e.Reason == string(l.Because.Reason) {
			if !e.FirstTimestamp.IsZero() {
				return e.FirstTimestamp.Time
			}
			return e.EventTime.Time
		}
	}
	return o.GetCreationTimestamp().Time
}

func (t Times) sincePod(p *corev1.Pod, l chain.Link) time.Time {
	if p == nil {
		return time.Time{}
	}
	for _, c := range p.Status.Conditions {
		if c.Reason == string(l.Because.Reason) && p.DeletionTimestamp == nil {
			return c.LastTransitionTime.Time
		}
	}
	return t.sinceOf(p, l)
}

func (t Times) sinceNode(name string) time.Time {
	n := cluster.Found(t.view.Nodes, name)
	if n == nil {
		return time.Time{}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
