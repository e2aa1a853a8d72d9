package snapshot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const (
	driver   = "d.example.com"
	made     = "snapcontent-u"
	handle   = "shot-1"
	existing = "admins"
)

// now is the time of all decisions.
func now() metav1.Time { return metav1.Time{Time: time.Unix(1000, 0).UTC()} }

// change changes the facts about a snapshot.
type change func(*Facts)

// of are the facts about a snapshot of claim data that somebody has just made, with a class.
func of(changes ...change) Facts {
	f := Facts{
		Snapshot: &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "u"}},
		Class:    class("fast"), Claim: claim(), Volume: pv(), Now: now(),
	}
	f.Snapshot.Spec.Source.PersistentVolumeClaimName = ptr.To("data")
	f.Snapshot.Spec.VolumeSnapshotClassName = ptr.To("fast")
	for _, c := range changes {
		c(&f)
	}
	return f
}

func class(name string, parameters ...string) *cluster.VolumeSnapshotClass {
	c := &cluster.VolumeSnapshotClass{VolumeSnapshotClass: snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: driver, Parameters: map[string]string{},
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}}
	for i := 0; i < len(parameters); i += 2 {
		c.Parameters[parameters[i]] = parameters[i+1]
	}
	return c
}

func claim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "c"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func pv() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "c"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "vol",
			}},
		},
	}
}

// kept has all finalizers.
func kept(f *Facts) {
	with(f.Snapshot, volume.FinalizerSnapshotAsSource, volume.FinalizerSnapshotBound)
	if f.Claim != nil {
		with(f.Claim, volume.FinalizerSnapshotSource)
	}
}

// contained has the content that is made for it.
func contained(f *Facts) {
	kept(f)
	f.Content, _ = contentOf(*f)
}

// taken has a content whose driver has taken the snapshot.
func taken(f *Facts) {
	contained(f)
	f.Content.Status = &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: ptr.To(handle), CreationTime: ptr.To[int64](5e9), RestoreSize: ptr.To[int64](1 << 30),
		ReadyToUse: ptr.To(true),
	}
}

// used is ready, and says so.
func used(f *Facts) {
	taken(f)
	f.Snapshot, _ = copied(f.Snapshot, f.Content)
}

// member is a snapshot in a group that its driver has taken.
func member(f *Facts) {
	taken(f)
	s, c := f.Snapshot, f.Content
	s.Name, c.Name = MemberNames("group-uid", "vol")
	s.Finalizers, s.OwnerReferences = []string{volume.FinalizerSnapshotInGroup}, []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"},
		{APIVersion: volume.GroupGroupSnapshot + "/v1", Kind: volume.KindGroup, Name: "g", UID: "group-uid"},
	}
	s.Spec.VolumeSnapshotClassName, f.Class = nil, nil
	c.Spec.VolumeSnapshotClassName, c.Spec.VolumeSnapshotRef.Name = nil, s.Name
	c.Annotations = map[string]string{volume.AnnGroupSnapshotHandle: "group-1"}
	c.Status.VolumeGroupSnapshotHandle = ptr.To("group-1")
}

// given is a snapshot of a content that an administrator has made.
func given(f *Facts) {
	f.Snapshot.Spec.Source = snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: ptr.To(existing)}
	f.Snapshot.Spec.VolumeSnapshotClassName, f.Class, f.Claim, f.Volume = nil, nil, nil, nil
	f.Content = &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: existing}}
	f.Content.Spec = cluster.VolumeSnapshotContentSpec{VolumeSnapshotContentSpec: snapshotv1.VolumeSnapshotContentSpec{
		VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s"}, Driver: driver,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
		Source:         snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: ptr.To(handle)},
	}}
}

func bound(f *Facts) {
	kept(f)
	f.Content.Spec.VolumeSnapshotRef.UID = "u"
}

func deleted(f *Facts)      { f.Snapshot.DeletionTimestamp = ptr.To(now()) }
func absent(f *Facts)       { f.Absent = true }
func noContent(f *Facts)    { f.Content = nil }
func noClass(f *Facts)      { f.Class, f.Snapshot.Spec.VolumeSnapshotClassName = nil, nil }
func retains(f *Facts)      { f.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain }
func contentGone(f *Facts)  { f.Content.DeletionTimestamp = ptr.To(now()) }
func contentGoing(f *Facts) { f.Content = Noted(f.Content, volume.AnnSnapshotDeleting, yes) }

func isDefault(c *cluster.VolumeSnapshotClass) *cluster.VolumeSnapshotClass {
	c.Annotations = map[string]string{volume.AnnDefaultSnapshotClass: "true"}
	return c
}

// restores is a claim that is to be made from the snapshot.
func restores(f *Facts) {
	c := claim()
	c.Name, c.Status.Phase = "copy", corev1.ClaimPending
	c.Spec.DataSource = &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: "s",
	}
	f.Restores = append(f.Restores, c)
}

func told(b volume.Because, warn, tell bool) string {
	kind := map[bool]string{true: "Warning", false: "Normal"}[warn]
	if !tell {
		kind = "(" + kind + ")"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s -> %s", kind, b.Reason, b.Message, b.Next), " -> ") + "\n"
}

// planText is a plan as text.
func planText(t *testing.T, f Facts, p Plan) string {
	var out strings.Builder
	word := [...]string{
		"nothing", "write the snapshot", "write the snapshot's status", "write the claim", "create the content",
		"write the content", "delete the content", "ask whether it exists",
	}[p.Step]
	if p.Binds {
		word += " (binds)"
	}
	out.WriteString(word + "\n")
	out.WriteString(told(p.Because, p.Warn, p.Event))
	for _, b := range p.Also {
		out.WriteString(told(b, false, true))
	}
	if p.Snapshot != nil {
		out.WriteString(golden.Change(t, f.Snapshot, p.Snapshot))
	}
	if p.Other != nil {
		out.WriteString(golden.Change(t, f.Claim, p.Other))
	}
	if p.Content != nil && f.Content == nil {
		out.WriteString(golden.Change(t, nil, p.Content))
	} else if p.Content != nil {
		out.WriteString(golden.Change(t, f.Content, p.Content))
	}
	return out.String() + "\n"
}
