package groupsnapshot

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

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

// membersOf returns what the driver has taken for a content that is the group's own.
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

// givenOf returns the snapshots of a group that somebody else has taken whose owner the group is to be: the driver has
// said of their contents that they are parts of the group.
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

// childrenOf returns the snapshots that go with a group: those whose owner it is, and members that have lost their
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
