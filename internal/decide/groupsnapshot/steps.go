package groupsnapshot

import (
	"cmp"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// groupController is who acts next about a VolumeGroupSnapshot.
func groupController() volume.Actor { return volume.Controller("group-snapshot-controller") }

// Facts is everything on which the decision about one VolumeGroupSnapshot depends.
type Facts struct {
	Group *groupv1.VolumeGroupSnapshot
	// Class is the class that the group names; nil if there is none of that name.
	Class *groupv1.VolumeGroupSnapshotClass
	// Classes are all classes, one of which may be the default.
	Classes []*groupv1.VolumeGroupSnapshotClass
	// Content is the content with the name that ContentName returns, or nil.
	Content *groupv1.VolumeGroupSnapshotContent
	// Absent means that the API server itself has confirmed that the content does not exist: a cache may not have it yet.
	Absent bool
	// Sources are the source claims of the group, which Chosen returns, as long as there is no content.
	Sources []Source
	// Members are what the driver has taken for the content, in the order of its status.
	Members []Member
	// Given are snapshots of members of a group, taken by another program, which the group does not own yet, in order.
	Given []*snapshotv1.VolumeSnapshot
	// Children are the snapshots that the group owns, in order.
	Children []Child
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// Source is a claim with its volume, or nil.
type Source struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
}

// Member is a snapshot in a group: the driver's report about it, the volume with its source's handle, and the objects
// with the names that snapshot.MemberNames returns, or nil.
type Member struct {
	Info     groupv1.VolumeSnapshotInfo
	Volume   *corev1.PersistentVolume
	Snapshot *snapshotv1.VolumeSnapshot
	Content  *cluster.VolumeSnapshotContent
}

// Child is a snapshot of a group with the claims without a volume that will be restored from it.
type Child struct {
	Snapshot *snapshotv1.VolumeSnapshot
	Restores []*corev1.PersistentVolumeClaim
}

// MemberStep is the next step for a member of a group.
type MemberStep int

const (
	// CreateSnapshot creates MemberPlan.Snapshot.
	CreateSnapshot MemberStep = iota
	// WriteSnapshot writes MemberPlan.Snapshot over OldSnapshot, except its status.
	WriteSnapshot
	// DeleteSnapshot deletes MemberPlan.Snapshot.
	DeleteSnapshot
	// CreateContent creates MemberPlan.Content.
	CreateContent
	// WriteContent writes MemberPlan.Content over OldContent, except its status.
	WriteContent
	// WriteStatus writes the status of MemberPlan.Content over OldContent.
	WriteStatus
)

// MemberPlan is the next step for the snapshot of a member, or for its content.
type MemberPlan struct {
	Step                  MemberStep
	Snapshot, OldSnapshot *snapshotv1.VolumeSnapshot
	Content, OldContent   *cluster.VolumeSnapshotContent
}

// Plan is the next step for a VolumeGroupSnapshot, its content or, as Other, one of its members.
type Plan = snapshot.PlanOf[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, MemberPlan]

func memberPlan(m MemberPlan, r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Step: snapshot.WriteOther, Other: m, Because: volume.Say(r, next, message)}
}

// ContentName returns the name of a group's content: that of the content to which it is bound or which it names,
// otherwise that of the content created for it.
func ContentName(g *groupv1.VolumeGroupSnapshot) string {
	if name := givenTo(g); name != "" {
		return name
	}
	return cmp.Or(boundTo(g), "groupsnapcontent-"+string(g.UID))
}

// IsReady says whether volumes can be created from a group.
func IsReady(g *groupv1.VolumeGroupSnapshot) bool {
	return g.Status != nil && ptr.Deref(g.Status.ReadyToUse, false)
}

// givenTo returns the name of the content that exists before its group does; "" for a group of claims.
func givenTo(g *groupv1.VolumeGroupSnapshot) string {
	return ptr.Deref(g.Spec.Source.VolumeGroupSnapshotContentName, "")
}

func boundTo(g *groupv1.VolumeGroupSnapshot) string {
	if g.Status == nil {
		return ""
	}
	return ptr.Deref(g.Status.BoundVolumeGroupSnapshotContentName, "")
}

// className returns the name of a group's class.
func className(g *groupv1.VolumeGroupSnapshot) string {
	return ptr.Deref(g.Spec.VolumeGroupSnapshotClassName, "")
}

// isOf says whether there is a content that is bound to a group.
func isOf(c *groupv1.VolumeGroupSnapshotContent, g *groupv1.VolumeGroupSnapshot) bool {
	return c != nil && viewOf(c).IsOf(g)
}

// ErrorOf returns the error in the status of a group, or "".
func ErrorOf(g *groupv1.VolumeGroupSnapshot) string {
	if g.Status == nil {
		return ""
	}
	return snapshot.ErrorIn(g.Status.Error)
}

func isHeld(g *groupv1.VolumeGroupSnapshot) bool {
	return slices.Contains(g.Finalizers, volume.FinalizerGroupBound)
}

func nothing(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}
