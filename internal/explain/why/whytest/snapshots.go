package whytest

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Snapshot makes the scene one of a snapshot of the claim, which the driver is taking.
func (s *Scene) Snapshot(change func(*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent)) {
	snap := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "s1", UID: "uid-s1",
			Finalizers: []string{volume.FinalizerSnapshotAsSource, volume.FinalizerSnapshotBound},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: ptr.To("data")},
			VolumeSnapshotClassName: ptr.To("snap"),
		},
		Status: &snapshotv1.VolumeSnapshotStatus{
			BoundVolumeSnapshotContentName: ptr.To("snapcontent-uid-s1"), ReadyToUse: ptr.To(false),
		},
	}
	content := &cluster.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-uid-s1", Finalizers: []string{volume.FinalizerContentBound}},
		Spec: cluster.VolumeSnapshotContentSpec{VolumeSnapshotContentSpec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "s1", UID: "uid-s1"},
			DeletionPolicy:    snapshotv1.VolumeSnapshotContentDelete, Driver: s.Driver.Name,
			VolumeSnapshotClassName: ptr.To("snap"),
			Source:                  snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("h1")},
		}},
		Status: &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(false)},
	}
	class := &cluster.VolumeSnapshotClass{VolumeSnapshotClass: snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "snap"}, Driver: s.Driver.Name,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}}
	s.Claim.Finalizers = append(s.Claim.Finalizers, volume.FinalizerSnapshotSource)
	s.All.Snapshots = []*snapshotv1.VolumeSnapshot{snap}
	s.All.SnapshotContents = []*cluster.VolumeSnapshotContent{content}
	s.All.SnapshotClasses = []*cluster.VolumeSnapshotClass{class}
	change(snap, content)
}

func snapshotRows() []Row {
	type (
		shot    = snapshotv1.VolumeSnapshot
		content = cluster.VolumeSnapshotContent
	)
	row := func(argues string, change func(*Scene, *shot, *content)) Row {
		return Row{argues, "volumesnapshot/s1", func(s *Scene) {
			s.Snapshot(func(snap *shot, c *content) { change(s, snap, c) })
		}}
	}
	failed := func(message string) *snapshotv1.VolumeSnapshotError {
		return &snapshotv1.VolumeSnapshotError{Message: &message}
	}
	return []Row{
		row("a snapshot that is ready", func(_ *Scene, snap *shot, c *content) {
			snap.Status.ReadyToUse, c.Status.ReadyToUse = ptr.To(true), ptr.To(true)
			c.Status.SnapshotHandle = ptr.To("shot-1")
		}),
		row("a snapshot that was lost with its node", func(_ *Scene, snap *shot, c *content) {
			snap.Status.ReadyToUse, c.Status.ReadyToUse = ptr.To(true), ptr.To(true)
			c.Annotations = map[string]string{volume.AnnProvisionedOn: "n2", volume.AnnLostWith: "n2"}
		}),
		row("a snapshot that is ready and has lost its content", func(s *Scene, snap *shot, _ *content) {
			snap.Status.ReadyToUse, s.All.SnapshotContents = ptr.To(true), nil
		}),
		row("a snapshot that nobody has taken up", func(s *Scene, snap *shot, _ *content) {
			snap.Finalizers, snap.Status, s.All.SnapshotContents = nil, nil, nil
		}),
		row("a snapshot that is being taken", func(*Scene, *shot, *content) {}),
		row("a snapshot of a class that is not there", func(s *Scene, _ *shot, _ *content) {
			s.All.SnapshotClasses, s.All.SnapshotContents = nil, nil
		}),
		row("a snapshot without a class, and none is the default", func(s *Scene, snap *shot, _ *content) {
			snap.Spec.VolumeSnapshotClassName, snap.Status, s.All.SnapshotContents = nil, nil, nil
		}),
		row("a snapshot of a claim that is not there", func(s *Scene, snap *shot, _ *content) {
			snap.Spec.Source.PersistentVolumeClaimName, s.All.SnapshotContents = ptr.To("gone"), nil
		}),
		row("a snapshot by the class of another driver", func(s *Scene, snap *shot, _ *content) {
			s.All.SnapshotClasses[0].Driver, s.All.SnapshotContents, snap.Status = "other.example.com", nil, nil
		}),
		row("a snapshot that the driver refuses", func(_ *Scene, snap *shot, c *content) {
			c.Status.Error = failed("rpc error: code = ResourceExhausted desc = pool is full")
			snap.Status.Error = c.Status.Error
		}),
		row("a snapshot that is being deleted", func(_ *Scene, snap *shot, c *content) {
			snap.DeletionTimestamp, c.DeletionTimestamp = Now(), Now()
			c.Annotations = map[string]string{volume.AnnSnapshotDeleting: "yes"}
		}),
		row("a snapshot that a volume is made from", func(_ *Scene, snap *shot, _ *content) {
			snap.DeletionTimestamp, snap.Finalizers = Now(), append(snap.Finalizers, volume.FinalizerRestoring)
		}),
		row("a snapshot that cannot be deleted", func(_ *Scene, snap *shot, c *content) {
			snap.DeletionTimestamp, c.DeletionTimestamp = Now(), Now()
			c.Annotations = map[string]string{volume.AnnSnapshotDeleting: "yes"}
			c.Status.Error = failed("rpc error: code = FailedPrecondition desc = it has clones")
		}),
		row("contents may not be read: a snapshot that is ready", func(s *Scene, snap *shot, _ *content) {
			snap.Status.ReadyToUse, s.All.SnapshotContents, s.All.SnapshotsHidden = ptr.To(true), nil, true
		}),
		row("contents may not be read: one that is not", func(s *Scene, _ *shot, _ *content) {
			s.All.SnapshotContents, s.All.SnapshotsHidden = nil, true
		}),
		row("contents may not be read: one that failed", func(s *Scene, snap *shot, _ *content) {
			snap.Status.Error = failed("rpc error: code = ResourceExhausted desc = pool is full")
			s.All.SnapshotContents, s.All.SnapshotsHidden = nil, true
		}),
		row("contents may not be read: one that is being deleted", func(s *Scene, snap *shot, _ *content) {
			snap.DeletionTimestamp, s.All.SnapshotContents, s.All.SnapshotsHidden = Now(), nil, true
		}),
	}
}

// snapshottedRows are claims that are being deleted, of which snapshots are taken.
func snapshottedRows() []Row {
	row := func(argues string, change func(*Scene)) Row {
		return Row{argues, "pvc/data", func(s *Scene) {
			change(s)
			s.LeavingClaim(volume.FinalizerSnapshotSource)
			s.All.Pods = nil
		}}
	}
	return []Row{
		row("a claim that is being deleted while a snapshot of it is taken", func(s *Scene) {
			s.Snapshot(func(*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent) {})
		}),
		row("a claim that is being deleted while a snapshot of it cannot be taken", func(s *Scene) {
			s.Snapshot(func(snap *snapshotv1.VolumeSnapshot, _ *cluster.VolumeSnapshotContent) {
				snap.Status = &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{
					Message: ptr.To("VolumeSnapshotClass snap of snapshot s1 does not exist"),
				}}
			})
			s.All.SnapshotContents, s.All.SnapshotClasses = nil, nil
		}),
		row("a claim that is being deleted after a snapshot of it was taken", func(*Scene) {}),
	}
}
