package since

import (
	"cmp"
	"strings"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/subject"
	"volplane.dev/volplane/internal/volume"
)

// Times knows since when links do not hold.
type Times struct {
	state.Objects
	view cluster.View
	// untried says that tries are left out.
	untried bool
}

// TimesOf returns what the objects tell.
func TimesOf(o state.Objects) Times { return TimesIn(o, o.View()) }

// TimesIn is TimesOf for objects of which there is a view already.
func TimesIn(o state.Objects, view cluster.View) Times { return Times{Objects: o, view: view} }

// WithoutTries returns the times without what changes whenever something is tried again.
func (t Times) WithoutTries() Times {
	t.untried = true
	return t
}

// Time is what is known about the time of a link. Zero fields are unknown.
type Time struct {
	// Since is since when the link does not hold.
	Since time.Time
	// Tries are the tries that have failed.
	Tries
}

// Of returns the time of a link, as far as the objects show it; the zero value for a link that holds.
func (t Times) Of(ns string, c chain.Chain, l chain.Link) Time {
	if l.State == chain.OK {
		return Time{}
	}
	out := t.find(ns, c, l)
	if t.untried {
		out.Tries = Tries{}
	}
	return out
}

func (t Times) find(ns string, c chain.Chain, l chain.Link) Time {
	of := subject.Of(t.view, ns, c)
	if out := t.object(of, l); out != (Time{}) {
		return out
	}
	return t.missing(of, l)
}

// object returns the time of a link by the object that it is about.
func (t Times) object(of subject.Finder, l chain.Link) Time {
	kind, name, _ := strings.Cut(l.Subject, "/")
	key := of.Namespace + "/" + name
	switch kind {
	case "pvc":
		return t.claim(cluster.Find(t.view.Claims, key), l)
	case "resize":
		return t.resize(cluster.Find(t.view.Claims, key), l)
	case "pod":
		return t.pod(cluster.Find(t.view.Pods, key), l)
	case "volumesnapshot":
		return t.snapshot(cluster.Find(t.view.Snapshots, key), l)
	case "volumegroupsnapshot":
		return t.group(cluster.Find(t.view.Groups, key), l)
	case "node":
		return t.node(name)
	case "pv", "storageclass", "csidriver":
		claim, _ := of.Claim()
		if v := cluster.Find(t.view.Volumes, name); v != nil && kind == "pv" {
			return t.volume(v, claim, l)
		}
		return t.claim(claim, l) // which waits for it
	case "attachment", "volumeattachment":
		return t.attachment(of.Attachment(name, func(*storagev1.VolumeAttachment) bool { return true }), l)
	}
	return Time{}
}

// missing returns since when the Pods of a chain wait, for a link whose own object does not show it or does not
// exist. Only events and conditions count: a Pod may have waited for something else since it was created.
func (t Times) missing(of subject.Finder, l chain.Link) Time {
	var out Time
	for _, p := range of.NamedPods() {
		told := t.of(p, l, time.Time{})
		told.Since = conditionSince(p, l, told.Since)
		if !told.Since.IsZero() && (out.Since.IsZero() || told.Since.Before(out.Since)) {
			out = told
		}
	}
	return out
}

// snapshot returns since when a snapshot waits: since it was created, as long as it is not ready.
func (t Times) snapshot(s *snapshotv1.VolumeSnapshot, l chain.Link) Time {
	if s == nil {
		return Time{}
	}
	return t.taken(s, ptr.Deref(s.Status, snapshotv1.VolumeSnapshotStatus{}).Error, l)
}

// group is snapshot for a group of them.
func (t Times) group(g *groupv1.VolumeGroupSnapshot, l chain.Link) Time {
	if g == nil {
		return Time{}
	}
	return t.taken(g, ptr.Deref(g.Status, groupv1.VolumeGroupSnapshotStatus{}).Error, l)
}

func (t Times) taken(o metav1.Object, failed *snapshotv1.VolumeSnapshotError, l chain.Link) Time {
	out := t.of(o, l, o.GetCreationTimestamp().Time)
	if failed != nil && failed.Time != nil {
		out.Last = failed.Time.Time
	}
	return out
}

// conditionSince returns since when a condition of a Pod has the reason of a link; otherwise if none has.
func conditionSince(p *corev1.Pod, l chain.Link, otherwise time.Time) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Reason == string(l.Because.Reason) {
			otherwise = c.LastTransitionTime.Time
		}
	}
	return otherwise
}

// of returns the time of a link about an object: since when it is being deleted, or else since its first
// warning for the same reason, or else what is known otherwise.
func (t Times) of(o metav1.Object, l chain.Link, otherwise time.Time) Time {
	told := t.warnings(o, l)
	out := Time{Since: otherwise, Tries: triesOf(told, l)}
	if len(told) > 0 {
		out.Since = firstSeen(told[0])
	}
	if d := o.GetDeletionTimestamp(); d != nil {
		// It is when the grace period ends.
		out.Since = d.Add(-time.Duration(ptr.Deref(o.GetDeletionGracePeriodSeconds(), 0)) * time.Second)
	}
	return out
}

// claim returns since when a claim waits. One that is bound has not waited since it was created.
func (t Times) claim(c *corev1.PersistentVolumeClaim, l chain.Link) Time {
	if c == nil {
		return Time{}
	}
	var waits time.Time
	if c.Status.Phase == corev1.ClaimPending || c.Status.Phase == "" {
		waits = c.CreationTimestamp.Time
	}
	if in := cluster.First(t.Begun, func(in *provision.Intent) bool { return in.Claim.UID == c.UID }); in != nil &&
		l.Because.Reason == volume.ReasonProvisioning {
		waits = in.Begun.Time
	}
	return t.of(c, l, waits)
}

// resize returns since when a claim's volume grows: by the condition of the step that is under way. Other controllers'
// conditions of the claim say nothing of that.
func (t Times) resize(c *corev1.PersistentVolumeClaim, l chain.Link) Time {
	if c == nil {
		return Time{}
	}
	var began time.Time
	for _, condition := range c.Status.Conditions {
		switch condition.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending:
			if condition.Status == corev1.ConditionTrue {
				began = condition.LastTransitionTime.Time
			}
		}
	}
	return t.of(c, l, began)
}

// volume returns since when a volume is released, or else since when a claim waits for it.
func (t Times) volume(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, l chain.Link) Time {
	var waits time.Time
	switch changed := v.Status.LastPhaseTransitionTime; {
	case v.Status.Phase != corev1.VolumeReleased && v.Status.Phase != corev1.VolumeFailed:
		waits = t.claim(claim, l).Since
	case changed != nil:
		waits = changed.Time
	}
	return t.of(v, l, waits)
}

// attachment returns since when a volume waits for its attach or its detach. The status has the time of
// the last failure.
func (t Times) attachment(a *storagev1.VolumeAttachment, l chain.Link) Time {
	if a == nil {
		return Time{}
	}
	var waits time.Time
	if !a.Status.Attached {
		waits = a.CreationTimestamp.Time
	}
	out := t.of(a, l, waits)
	var failed *storagev1.VolumeError
	switch l.Because.Reason {
	case volume.ReasonFailedAttach:
		failed = a.Status.AttachError
	case volume.ReasonFailedDetach:
		failed = a.Status.DetachError
	}
	if failed != nil {
		out.Tries = out.failedAt(failed.Time.Time)
	}
	return out
}

// pod returns since when a Pod waits: by its condition, which also has the time of the call that has not
// returned, or else since it was created.
func (t Times) pod(p *corev1.Pod, l chain.Link) Time {
	if p == nil {
		return Time{}
	}
	out := t.of(p, l, p.CreationTimestamp.Time)
	if p.DeletionTimestamp != nil {
		return out
	}
	out.Since = conditionSince(p, l, out.Since)
	if at, err := time.Parse(time.RFC3339, p.Annotations[volume.AnnCalledAt]); err == nil &&
		l.Because.Reason == volume.ReasonMounting {
		out.Since = at
	}
	return out
}

func (t Times) node(name string) Time {
	n := cluster.Find(t.view.Nodes, name)
	if n == nil {
		return Time{}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return Time{Since: c.LastTransitionTime.Time}
		}
	}
	return Time{}
}

// warnings returns the warnings about an object for the reason of a link, oldest first. Those of a volume that is on
// another node have the reason that they have in Kubernetes.
func (t Times) warnings(o metav1.Object, l chain.Link) []*corev1.Event {
	reason := l.Because.Reason
	if reason == volume.ReasonMultiAttach {
		reason = volume.ReasonFailedAttach
	}
	var out []*corev1.Event
	for _, e := range t.Warnings {
		if e.InvolvedObject.UID == o.GetUID() && e.Reason == string(reason) {
			out = append(out, e)
		}
	}
	return out
}

func firstSeen(e *corev1.Event) time.Time {
	return cmp.Or(e.FirstTimestamp.Time, e.EventTime.Time, e.CreationTimestamp.Time)
}
