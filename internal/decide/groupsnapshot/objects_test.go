package groupsnapshot

import (
	"fmt"
	"strings"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// edit changes the facts about a group.
type edit func(*Facts)

// group are the facts about a group of the claims a and b that somebody has just made, with a class.
func group(edits ...edit) Facts {
	f := Facts{
		Group: &groupv1.VolumeGroupSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g", UID: "u"}},
		Class: fast("fast"), Sources: []Source{source("a", "v"), source("b", "w")}, Now: now(),
	}
	f.Group.Spec.Source.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
	f.Group.Spec.VolumeGroupSnapshotClassName = ptr.To("fast")
	for _, e := range edits {
		e(&f)
	}
	return f
}

func fast(name string, parameters ...string) *groupv1.VolumeGroupSnapshotClass {
	c := class(parameters...)
	c.Name, c.DeletionPolicy = name, snapshotv1.VolumeSnapshotContentDelete
	return c
}

func isDefault(c *groupv1.VolumeGroupSnapshotClass) *groupv1.VolumeGroupSnapshotClass {
	c.Annotations = map[string]string{volume.AnnDefaultGroupClass: "true"}
	return c
}

func source(claim, handle string) Source {
	uid := corev1.ObjectReference{Namespace: "ns", Name: claim, UID: "uid"}
	return Source{
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: claim, UID: uid.UID, Labels: map[string]string{"app": "db"}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		Volume: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &uid, PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle},
			}},
		},
	}
}

// held has the finalizer.
func held(f *Facts) { f.Group.Finalizers = []string{volume.FinalizerGroupBound} }

// contained has the content that is made for it.
func contained(f *Facts) {
	held(f)
	f.Content, _ = f.contentOf()
}

// bound names its content.
func bound(f *Facts) {
	contained(f)
	f.Group, _ = copied(f.Group, f.Content)
}

// takenOf has a content whose driver has taken the group, and no members yet.
func takenOf(f *Facts) {
	bound(f)
	f.Content = noteTaken(DriverFacts{Content: f.Content, Now: now()}, answered(true)).Content
	for i, info := range f.Content.Status.VolumeSnapshotInfoList {
		f.Members = append(f.Members, Member{Info: info, Volume: f.Sources[i].Volume})
	}
}

// made has members with all that they need.
func made(f *Facts) {
	takenOf(f)
	for i := range f.Members {
		for range 3 {
			step(f, i)
		}
		f.Children = append(f.Children, Child{Snapshot: f.Members[i].Snapshot})
	}
}

// step does the next step for a member.
func step(f *Facts, i int) {
	m := &f.Members[i]
	switch p := f.member(*m).Other; p.Step {
	case CreateSnapshot:
		m.Snapshot = p.Snapshot
		m.Snapshot.UID = "uid-s"
	default:
		m.Content = p.Content
	}
}

// used is ready, and says so.
func used(f *Facts) {
	made(f)
	f.Group, _ = copied(f.Group, f.Content)
}

// prebound is a group of a content that an administrator has made.
func prebound(f *Facts) {
	f.Group.Spec = groupv1.VolumeGroupSnapshotSpec{
		Source: groupv1.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: ptr.To("admins")},
	}
	f.Class, f.Sources = nil, nil
	of := of(given)
	f.Content = of.Content
	f.Content.Name, f.Content.Spec.VolumeGroupSnapshotClassName = "admins", nil
}

// theirs has a bound content, and a snapshot of a member that an administrator has made.
func theirs(f *Facts) {
	f.Content.Spec.VolumeGroupSnapshotRef.UID = "u"
	f.Given = []*snapshotv1.VolumeSnapshot{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}}
}

func deleted(f *Facts)   { f.Group.DeletionTimestamp = ptr.To(now()) }
func absent(f *Facts)    { f.Absent = true }
func lost(f *Facts)      { f.Content = nil }
func classless(f *Facts) { f.Class, f.Group.Spec.VolumeGroupSnapshotClassName = nil, nil }
func retained(f *Facts)  { f.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain }
func contentGo(f *Facts) { f.Content.DeletionTimestamp = ptr.To(now()) }
func contentTold(f *Facts) {
	f.Content = snapshot.Noted(f.Content, volume.AnnGroupDeleting, "yes")
}

func childrenGo(f *Facts) {
	for i := range f.Children {
		f.Children[i].Snapshot.DeletionTimestamp = ptr.To(now())
	}
}

// restores is a claim that is to be made from the second member.
func restores(f *Facts) {
	f.Children[1].Restores = []*corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "copy"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}}
}

func toldOf(b volume.Because, warn, tell bool) string {
	kind := map[bool]string{true: "Warning", false: "Normal"}[warn]
	if !tell {
		kind = "(" + kind + ")"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s -> %s", kind, b.Reason, b.Message, b.Next), " -> ") + "\n"
}

// stepText is a plan as text. before is the object that is written, if it is not new.
func stepText(t *testing.T, p Plan, before any) string {
	var out strings.Builder
	word := [...]string{
		"nothing", "write the group", "write the group's status", "", "create the content", "write the content",
		"delete the content", "ask whether it exists",
	}[p.Step]
	if p.Step == snapshot.WriteOther {
		word = [...]string{
			"create a snapshot", "write the snapshot", "delete a snapshot", "create a member's content",
			"write a member's content", "write the status of a member's content",
		}[p.Other.Step]
	}
	if p.Binds {
		word += " (binds)"
	}
	out.WriteString(word + "\n" + toldOf(p.Because, p.Warn, p.Event))
	for _, b := range p.Also {
		out.WriteString(toldOf(b, false, true))
	}
	switch p.Step {
	case snapshot.WriteSnapshot, snapshot.WriteStatus:
		out.WriteString(golden.Change(t, before, p.Snapshot))
	case snapshot.CreateContent, snapshot.WriteContent:
		out.WriteString(golden.Change(t, before, p.Content))
	case snapshot.WriteOther:
		out.WriteString(memberText(t, p.Other, before))
	case snapshot.Nothing, snapshot.DeleteContent, snapshot.Confirm:
	}
	return out.String() + "\n"
}

// memberText is what a plan writes for a member.
func memberText(t *testing.T, p MemberPlan, before any) string {
	switch p.Step {
	case CreateSnapshot, WriteSnapshot:
		return golden.Change(t, before, p.Snapshot)
	case CreateContent, WriteContent, WriteStatus:
		if p.OldContent != nil {
			before = p.OldContent
		}
		return golden.Change(t, before, p.Content)
	case DeleteSnapshot:
	}
	return ""
}

// written returns the object that a plan changes; nil for a new one.
func written(f Facts, p Plan) any {
	switch p.Step {
	case snapshot.WriteOther:
		if p.Other.Step == WriteSnapshot {
			return p.Other.OldSnapshot
		}
		return nil
	case snapshot.WriteSnapshot, snapshot.WriteStatus:
		return f.Group
	case snapshot.WriteContent:
		return f.Content
	default:
		return nil
	}
}

type groupRow struct {
	argues string
	facts  Facts
}

func compareGroups(t *testing.T, file string, rows []groupRow) {
	t.Helper()
	var out strings.Builder
	for _, r := range rows {
		before, content := r.facts.Group.DeepCopy(), r.facts.Content.DeepCopy()
		p := Group(r.facts)
		fmt.Fprintf(&out, "# %s\n%s", r.argues, stepText(t, p, written(r.facts, p)))
		if golden.Change(t, before, r.facts.Group)+golden.Change(t, content, r.facts.Content) != "" {
			t.Errorf("%s: the decision has changed its facts", r.argues)
		}
	}
	golden.Equal(t, file, out.String())
}
