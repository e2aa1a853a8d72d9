package groupsnapshot

import (
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// member returns the next step for a member of a group that the driver has taken; an empty plan if there is none. The
// snapshot is created before its content: the group finds it by its owner, and both are deleted with the group.
func (f Facts) member(m Member) Plan {
	g := f.Group
	name, contentName := snapshot.MemberNames(g.UID, m.Info.VolumeHandle)
	pending := func(p MemberPlan, message string) Plan {
		return memberPlan(p, volume.ReasonGroupPending, groupController(), message)
	}
	switch s, c := m.Snapshot, m.Content; {
	case s == nil:
		return pending(MemberPlan{Step: CreateSnapshot, Snapshot: f.snapshotOf(name, m)},
			"snapshot "+name+" is created for volume "+m.Info.VolumeHandle)
	case !isMember(s, g):
		return f.failed(volume.ReasonGroupMemberFailed, volume.User(),
			"snapshot "+name+" exists, and is not a member of group snapshot "+g.Name)
	case c == nil:
		return pending(MemberPlan{Step: CreateContent, Content: f.memberOf(contentName, m)},
			"content "+contentName+" is created for snapshot "+name)
	case !f.fits(m):
		return f.failed(volume.ReasonGroupMemberFailed, volume.User(),
			"content "+contentName+" exists, and is not for snapshot "+name+" of group snapshot "+g.Name)
	case c.Spec.VolumeSnapshotRef.UID == "":
		next := c.DeepCopy()
		next.Spec.VolumeSnapshotRef.UID = s.UID
		return pending(MemberPlan{Step: WriteContent, OldContent: c, Content: next},
			"content "+contentName+" is being bound to snapshot "+name)
	}
	return f.noteMember(m)
}

// noteMember writes the driver's report about a member's snapshot to its content.
func (f Facts) noteMember(m Member) Plan {
	c := m.Content
	want := &snapshotv1.VolumeSnapshotContentStatus{
		SnapshotHandle: &m.Info.SnapshotHandle, VolumeGroupSnapshotHandle: f.Content.Status.VolumeGroupSnapshotHandle,
		CreationTime: m.Info.CreationTime, RestoreSize: m.Info.RestoreSize, ReadyToUse: m.Info.ReadyToUse,
	}
	if at := f.Content.Status.CreationTime; want.CreationTime == nil && at != nil {
		want.CreationTime = ptr.To(at.UnixNano())
	}
	if equality.Semantic.DeepEqual(c.Status, want) {
		return Plan{}
	}
	next := c.DeepCopy()
	next.Status = want
	return memberPlan(MemberPlan{Step: WriteStatus, OldContent: c, Content: next},
		volume.ReasonGroupPending, groupController(),
		"content "+c.Name+" gets what driver "+c.Spec.Driver+" says of snapshot "+m.Info.SnapshotHandle)
}

// isMember says whether a snapshot is a member of a group.
func isMember(s *snapshotv1.VolumeSnapshot, g *groupv1.VolumeGroupSnapshot) bool {
	owner := cluster.GroupOf(s)
	return owner != nil && owner.UID == g.UID
}

// fits says whether the content with a member's name is that of the member.
func (f Facts) fits(m Member) bool {
	s, c := m.Snapshot, m.Content
	ref := c.Spec.VolumeSnapshotRef
	return ref.Namespace == s.Namespace && ref.Name == s.Name && (ref.UID == "" || ref.UID == s.UID) &&
		c.Spec.Driver == f.Content.Spec.Driver && ptr.Deref(c.Spec.Source.VolumeHandle, "") == m.Info.VolumeHandle &&
		c.Annotations[volume.AnnGroupSnapshotHandle] == HandleOf(f.Content)
}

// snapshotOf returns the snapshot of a volume in a group. Its claim is the current claim of the volume, if any.
func (f Facts) snapshotOf(name string, m Member) *snapshotv1.VolumeSnapshot {
	g, claim := f.Group, ""
	if v := m.Volume; v != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == g.Namespace {
		claim = v.Spec.ClaimRef.Name
	}
	finalizers := []string{volume.FinalizerSnapshotInGroup, volume.FinalizerSnapshotAsSource}
	if viewOf(f.Content).Deletes {
		finalizers = append(finalizers, volume.FinalizerSnapshotBound)
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: name, Finalizers: finalizers,
			OwnerReferences: []metav1.OwnerReference{ownerOf(g)},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
	}
}

func ownerOf(g *groupv1.VolumeGroupSnapshot) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: groupv1.SchemeGroupVersion.String(), Kind: volume.KindGroup, Name: g.Name, UID: g.UID,
	}
}

// memberOf returns the content of a member. Its annotation keeps every controller from taking or deleting its snapshot
// alone.
func (f Facts) memberOf(name string, m Member) *cluster.VolumeSnapshotContent {
	of, s := f.Content, m.Snapshot
	notes := map[string]string{volume.AnnGroupSnapshotHandle: HandleOf(of)}
	for from, to := range map[string]string{
		volume.AnnGroupSecretName: volume.AnnSnapshotSecretName, volume.AnnProvisionedOn: volume.AnnProvisionedOn,
		volume.AnnGroupSecretNamespace: volume.AnnSnapshotSecretNamespace,
	} {
		if value := of.Annotations[from]; value != "" {
			notes[to] = value
		}
	}
	var mode *corev1.PersistentVolumeMode
	if m.Volume != nil {
		mode = ptr.To(ptr.Deref(m.Volume.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))
	}
	return &cluster.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: notes, Finalizers: []string{volume.FinalizerContentBound},
			Labels: map[string]string{volume.LabelMadeBy: volume.Program},
		},
		Spec: cluster.VolumeSnapshotContentSpec{VolumeSnapshotContentSpec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: volume.KindSnapshot, APIVersion: snapshotv1.SchemeGroupVersion.String(), Namespace: s.Namespace, Name: s.Name,
				UID: s.UID,
			},
			DeletionPolicy: of.Spec.DeletionPolicy, Driver: of.Spec.Driver, SourceVolumeMode: mode,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To(m.Info.VolumeHandle)},
		}, NodeAffinity: affinityOf(of, m.Info.VolumeHandle)},
	}
}

// MemberFacts is everything that decides whether a snapshot stays because of its group.
type MemberFacts struct {
	Snapshot *snapshotv1.VolumeSnapshot
	// Group has the name of the snapshot's group; nil if there is none. Absent means that the API server itself has
	// confirmed that.
	Group  *groupv1.VolumeGroupSnapshot
	Absent bool
}

// ParentOf returns the name of the group that a snapshot is a member of; "" if that is unknown.
func ParentOf(s *snapshotv1.VolumeSnapshot) string {
	if owner := cluster.GroupOf(s); owner != nil {
		return owner.Name
	}
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.VolumeGroupSnapshotName, "")
}

// Membership decides whether a snapshot that is being deleted stays because of its group.
func Membership(f MemberFacts) Plan {
	s, g, owner := f.Snapshot, f.Group, cluster.GroupOf(f.Snapshot)
	isThere := g != nil && (owner == nil || owner.UID == g.UID)
	switch {
	case s.DeletionTimestamp == nil || !slices.Contains(s.Finalizers, volume.FinalizerSnapshotInGroup):
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "snapshot "+s.Name+" is not held by a group")
	case isThere && g.DeletionTimestamp != nil:
		return nothing(volume.ReasonTerminating, groupController(),
			"snapshot "+s.Name+" is being deleted with group snapshot "+g.Name)
	case isThere:
		return Plan{Warn: true, Event: true, Because: volume.Say(volume.ReasonSnapshotDeletePending, volume.User(),
			"deletion of the individual volume snapshot "+s.Name+" is not allowed as it belongs to group snapshot "+g.Name+
				": it is deleted with the group")}
	case g == nil && ParentOf(s) != "" && !f.Absent:
		return Plan{Step: snapshot.Confirm, Because: volume.Say(volume.ReasonTerminating, groupController(),
			"snapshot "+s.Name+" is being deleted, and group snapshot "+ParentOf(s)+" is looked for")}
	}
	next := s.DeepCopy()
	next.Finalizers = volume.Without(next.Finalizers, volume.FinalizerSnapshotInGroup)
	return memberPlan(MemberPlan{Step: WriteSnapshot, OldSnapshot: s, Snapshot: next},
		volume.ReasonTerminating, volume.Controller("snapshot-controller"),
		"snapshot "+s.Name+" is being deleted, and its group is gone")
}
