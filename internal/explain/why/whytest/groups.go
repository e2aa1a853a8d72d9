package whytest

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Group makes the scene one of a group of the claim, which the driver is taking.
func (s *Scene) Group(change func(*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent)) {
	group := &groupv1.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "g1", UID: "uid-g1", Finalizers: []string{volume.FinalizerGroupBound},
		},
		Spec: groupv1.VolumeGroupSnapshotSpec{
			Source: groupv1.VolumeGroupSnapshotSource{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			},
			VolumeGroupSnapshotClassName: ptr.To("snap"),
		},
		Status: &groupv1.VolumeGroupSnapshotStatus{
			BoundVolumeGroupSnapshotContentName: ptr.To("groupsnapcontent-uid-g1"), ReadyToUse: ptr.To(false),
		},
	}
	content := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "groupsnapcontent-uid-g1", Finalizers: []string{volume.FinalizerGroupContentBound},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "g1", UID: "uid-g1"},
			DeletionPolicy:         snapshotv1.VolumeSnapshotContentDelete, Driver: s.Driver.Name,
			VolumeGroupSnapshotClassName: ptr.To("snap"),
			Source:                       groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"h1"}},
		},
		Status: &groupv1.VolumeGroupSnapshotContentStatus{ReadyToUse: ptr.To(false)},
	}
	class := &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "snap"}, Driver: s.Driver.Name,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
	s.Claim.Labels = map[string]string{"app": "db"}
	s.All.Groups = []*groupv1.VolumeGroupSnapshot{group}
	s.All.GroupContents = []*groupv1.VolumeGroupSnapshotContent{content}
	s.All.GroupClasses = []*groupv1.VolumeGroupSnapshotClass{class}
	change(group, content)
}

func groupRows() []Row {
	type (
		group   = groupv1.VolumeGroupSnapshot
		content = groupv1.VolumeGroupSnapshotContent
	)
	row := func(argues string, change func(*Scene, *group, *content)) Row {
		return Row{argues, "volumegroupsnapshot/g1", func(s *Scene) {
			s.Group(func(g *group, c *content) { change(s, g, c) })
		}}
	}
	hidden := func(s *Scene) { s.All.GroupContents, s.All.SnapshotsHidden = nil, true }
	failed := &snapshotv1.VolumeSnapshotError{Message: ptr.To("rpc error: code = ResourceExhausted desc = pool is full")}
	return []Row{
		row("a group that is ready", func(_ *Scene, g *group, c *content) {
			g.Status.ReadyToUse, c.Status.ReadyToUse = ptr.To(true), ptr.To(true)
		}),
		row("a group that was lost with its node", func(_ *Scene, g *group, c *content) {
			g.Status.ReadyToUse, c.Status.ReadyToUse = ptr.To(true), ptr.To(true)
			c.Annotations = map[string]string{volume.AnnProvisionedOn: "n2", volume.AnnLostWith: "n2"}
		}),
		row("a group that is ready and has lost its content", func(s *Scene, g *group, _ *content) {
			g.Status.ReadyToUse, s.All.GroupContents = ptr.To(true), nil
		}),
		row("a group that nobody has taken up", func(s *Scene, g *group, _ *content) {
			g.Finalizers, g.Status, s.All.GroupContents = nil, nil, nil
		}),
		row("a group that is being taken", func(*Scene, *group, *content) {}),
		row("a group of no claim", func(s *Scene, g *group, _ *content) {
			s.Claim.Labels, g.Status, s.All.GroupContents = nil, nil, nil
		}),
		row("a group of a class that is not there", func(s *Scene, _ *group, _ *content) {
			s.All.GroupClasses, s.All.GroupContents = nil, nil
		}),
		row("a group that the driver refuses", func(_ *Scene, g *group, c *content) {
			g.Status.Error, c.Status.Error = failed, failed
		}),
		row("a group that is being deleted", func(_ *Scene, g *group, c *content) {
			g.DeletionTimestamp, c.DeletionTimestamp = Now(), Now()
			c.Annotations = map[string]string{volume.AnnGroupDeleting: "yes"}
		}),
		row("contents may not be read: a group that is ready", func(s *Scene, g *group, _ *content) {
			g.Status.ReadyToUse = ptr.To(true)
			hidden(s)
		}),
		row("contents may not be read: a group that is being taken", func(s *Scene, _ *group, _ *content) { hidden(s) }),
		row("contents may not be read: a group that failed", func(s *Scene, g *group, _ *content) {
			g.Status.Error = failed
			hidden(s)
		}),
		row("contents may not be read: a group that is being deleted", func(s *Scene, g *group, _ *content) {
			g.DeletionTimestamp = Now()
			hidden(s)
		}),
	}
}
