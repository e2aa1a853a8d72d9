package groupsnapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

const (
	// kindGroup begins the keys of the parameters that name a group, and namePrefix is the usual prefix of the group's
	// name at the driver.
	kindGroup, namePrefix = "volumegroupsnapshot", "groupsnapshot"
	// forGetting is the purpose of the Secret of a class for calls that look for a group.
	forGetting = "group-snapshotter-get"
	// capability is what a driver needs to take, find and delete groups.
	capability = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
)

// DriverFacts is everything on which the decision about the driver's part of a VolumeGroupSnapshotContent depends.
type DriverFacts = snapshot.DriverFactsOf[*groupv1.VolumeGroupSnapshotContent]

// DriverPlan is the next step of a content at its driver, and its reason: AfterTake judges the answer of
// CreateVolumeGroupSnapshot, AfterGet that of GetVolumeGroupSnapshot, and AfterRemove that of
// DeleteVolumeGroupSnapshot.
type DriverPlan = snapshot.PlanFor[*groupv1.VolumeGroupSnapshotContent]

// ContentFacts is everything on which the common decision about one VolumeGroupSnapshotContent depends.
type ContentFacts = snapshot.ContentFactsOf[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent]

// Groups returns what distinguishes groups of snapshots from single ones.
func Groups() *snapshot.Kind[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, MemberPlan] {
	return &snapshot.Kind[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, MemberPlan]{
		ContentKind: snapshot.ContentKind[*groupv1.VolumeGroupSnapshotContent]{
			Controller: groupController(), View: viewOf, ContentState: contentState, Look: look,
			Wanted: func(v snapshot.View) string {
				return fmt.Sprintf("snapshots of %d volumes at one moment", len(v.Sources))
			},
			Marks: snapshot.Marks{
				Finalizer: volume.FinalizerGroupContentBound,
				Creating:  volume.AnnGroupCreating, Deleting: volume.AnnGroupDeleting,
				SecretName: volume.AnnGroupSecretName, SecretNamespace: volume.AnnGroupSecretNamespace,
			},
			Words: snapshot.Words{
				Noun: "group snapshot", ClassKind: "VolumeGroupSnapshotClass", One: "group", Several: "groups of snapshots",
				Sources: "either volumes or a group of snapshots of the driver as its source", Part: " or a snapshot in it",
				Keys: kindGroup, Prefix: namePrefix, Capability: capability,
			},
			Invalid: volume.ReasonGroupContentInvalid, Pending: volume.ReasonGroupPending, Ready: volume.ReasonGroupReady,
			ClassMissing: volume.ReasonGroupFailed, ClassMismatch: volume.ReasonGroupFailed,
			TakeFailed: volume.ReasonGroupFailed, DeleteFailed: volume.ReasonGroupDeleteFailed,
		},
		State: groupState, Bind: bind,
		Misbound: volume.ReasonGroupMisbound, Missing: volume.ReasonGroupContentMissing,
		BindFailed: volume.ReasonGroupBindFailed, Mismatch: volume.ReasonGroupContentMismatch,
		HandleSet: volume.ReasonGroupContentMismatch, ContentMisbound: volume.ReasonGroupContentMisbound,
	}
}

// viewOf returns what decisions read of the content of a group.
func viewOf(c *groupv1.VolumeGroupSnapshotContent) snapshot.View {
	source, status := c.Spec.Source, ptr.Deref(c.Status, groupv1.VolumeGroupSnapshotContentStatus{})
	return snapshot.View{
		Driver: c.Spec.Driver, Class: ptr.Deref(c.Spec.VolumeGroupSnapshotClassName, ""), Ref: c.Spec.VolumeGroupSnapshotRef,
		Given: source.GroupSnapshotHandles != nil,
		Valid: (len(source.VolumeHandles) == 0) != (source.GroupSnapshotHandles == nil), Sources: source.VolumeHandles,
		Handle: HandleOf(c), Members: MembersOf(c), Taken: ptr.Deref(status.VolumeGroupSnapshotHandle, "") != "",
		Ready: ptr.Deref(status.ReadyToUse, false), Deletes: c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete,
		Problem: status.Error,
	}
}

func contentState(
	c *groupv1.VolumeGroupSnapshotContent,
) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
	c.Status = cmp.Or(c.Status, &groupv1.VolumeGroupSnapshotContentStatus{})
	return &c.Status.Error, &c.Status.ReadyToUse
}

func groupState(g *groupv1.VolumeGroupSnapshot) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
	g.Status = cmp.Or(g.Status, &groupv1.VolumeGroupSnapshotStatus{})
	return &g.Status.Error, &g.Status.ReadyToUse
}

func bind(c *groupv1.VolumeGroupSnapshotContent, g *groupv1.VolumeGroupSnapshot) {
	c.Spec.VolumeGroupSnapshotRef.UID = g.UID
	if name := className(g); name != "" && c.Spec.VolumeGroupSnapshotClassName == nil {
		c.Spec.VolumeGroupSnapshotClassName = &name
	}
}

// ClassOf returns the part of a content's class that decisions use; nil without one.
func ClassOf(c *groupv1.VolumeGroupSnapshotClass) *snapshot.Class {
	if c == nil {
		return nil
	}
	return &snapshot.Class{Name: c.Name, Driver: c.Driver, Parameters: c.Parameters}
}

// HandleOf returns the driver's group that a content refers to; "" if it is not known.
func HandleOf(c *groupv1.VolumeGroupSnapshotContent) string {
	if c.Status != nil && ptr.Deref(c.Status.VolumeGroupSnapshotHandle, "") != "" {
		return *c.Status.VolumeGroupSnapshotHandle
	}
	if given := c.Spec.Source.GroupSnapshotHandles; given != nil {
		return given.VolumeGroupSnapshotHandle
	}
	return ""
}

// MembersOf returns the handles of the snapshots in the group that a content refers to, as far as they are known.
func MembersOf(c *groupv1.VolumeGroupSnapshotContent) []string {
	if given := c.Spec.Source.GroupSnapshotHandles; given != nil {
		return given.VolumeSnapshotHandles
	}
	var out []string
	if c.Status != nil {
		for _, s := range c.Status.VolumeSnapshotInfoList {
			out = append(out, s.SnapshotHandle)
		}
	}
	return out
}

// OthersOf returns the names of contents, other than c and those of its own members, that refer to a group of c's
// driver or to a snapshot in it, in order. If c is being released, those that keep nothing are left out.
func OthersOf(
	c *groupv1.VolumeGroupSnapshotContent, handle string, members []string,
	groups []*groupv1.VolumeGroupSnapshotContent, snapshots []*cluster.VolumeSnapshotContent,
) []string {
	names, leaves := Groups().SameAs(c, handle, groups), Groups().MayRelease(c)
	for _, s := range snapshots {
		if s.Spec.Driver == c.Spec.Driver && slices.Contains(members, snapshot.HandleOf(s)) && groupOf(s) != handle &&
			!(leaves && snapshot.Single().KeepsNothing(s)) {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// groupOf returns the handle of the group that the content of a snapshot says it is a member of.
func groupOf(s *cluster.VolumeSnapshotContent) string {
	return cmp.Or(s.Annotations[volume.AnnGroupSnapshotHandle], toldGroup(s))
}

// toldGroup returns the handle of the group that a snapshot is a part of, as reported by its driver; "" if there is
// none.
func toldGroup(s *cluster.VolumeSnapshotContent) string {
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.VolumeGroupSnapshotHandle, "")
}

// FactsOf gathers the facts about a group.
func FactsOf(view cluster.View, g *groupv1.VolumeGroupSnapshot, now metav1.Time) Facts {
	f := Facts{Group: g, Content: cluster.Find(view.GroupContents, ContentName(g)), Now: now}
	if name := className(g); name != "" {
		f.Class = cluster.Find(view.GroupClasses, name)
	} else {
		f.Classes = view.GroupClasses.List()
	}
	switch {
	case f.Content != nil:
		f.Members, f.Given = membersOf(view, f), givenOf(view, f)
	case givenTo(g) == "" && g.DeletionTimestamp == nil:
		for _, c := range Chosen(g, view.Claims.List()) {
			f.Sources = append(f.Sources, Source{c, cluster.Find(view.Volumes, c.Spec.VolumeName)})
		}
	}
	if g.DeletionTimestamp != nil {
		f.Children = childrenOf(view, f)
	}
	return f
}

// membersOf returns what the driver has taken for a content, without parts of other groups.
func membersOf(view cluster.View, f Facts) []Member {
	var out []Member
	if f.Content.Status == nil || !isOf(f.Content, f.Group) || !viewOf(f.Content).Taken {
		return nil
	}
	for _, info := range f.Content.Status.VolumeSnapshotInfoList {
		name, content := snapshot.MemberNames(f.Group.UID, info.VolumeHandle)
		m := Member{
			Info: info, Snapshot: cluster.Find(view.Snapshots, f.Group.Namespace+"/"+name),
			Content: cluster.Find(view.SnapshotContents, content),
		}
		all := view.Volumes.By(cluster.VolumesByHandle, volume.Key(f.Content.Spec.Driver, info.VolumeHandle))
		if len(all) > 0 {
			m.Volume = all[0]
		}
		out = append(out, m)
	}
	return out
}

// givenOf returns the snapshots of a group taken by another program, which the group will own: the driver has reported
// that their contents are parts of the group.
func givenOf(view cluster.View, f Facts) []*snapshotv1.VolumeSnapshot {
	c, given := f.Content, f.Content.Spec.Source.GroupSnapshotHandles
	if given == nil || !isOf(c, f.Group) {
		return nil
	}
	var out []*snapshotv1.VolumeSnapshot
	for _, handle := range given.VolumeSnapshotHandles {
		for _, of := range view.SnapshotContents.By(cluster.ContentsByHandle, handle) {
			ref := of.Spec.VolumeSnapshotRef
			s := cluster.Find(view.Snapshots, ref.Namespace+"/"+ref.Name)
			if of.Spec.Driver == c.Spec.Driver && toldGroup(of) == given.VolumeGroupSnapshotHandle && s != nil &&
				s.UID == ref.UID && s.Namespace == f.Group.Namespace && cluster.GroupOf(s) == nil {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(a, b *snapshotv1.VolumeSnapshot) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// childrenOf returns the snapshots that are deleted with a group: those that it owns, and members that have lost their
// owner.
func childrenOf(view cluster.View, f Facts) []Child {
	found := map[string]*snapshotv1.VolumeSnapshot{}
	for _, s := range view.Snapshots.By(cluster.SnapshotsByGroup, cluster.Key(f.Group)) {
		if isMember(s, f.Group) {
			found[s.Name] = s
		}
	}
	for _, m := range f.Members {
		if s := m.Snapshot; s != nil && snapshot.InGroup(s) {
			found[s.Name] = s
		}
	}
	var out []Child
	for _, s := range found {
		out = append(out, Child{s, view.Claims.By(cluster.UnboundBySnapshot, cluster.Key(s))})
	}
	slices.SortFunc(out, func(a, b Child) int { return strings.Compare(a.Snapshot.Name, b.Snapshot.Name) })
	return out
}
