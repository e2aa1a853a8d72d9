package statefile

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/utils/ptr"
)

func (c cleaner) snapshot(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshot {
	out := &snapshotv1.VolumeSnapshot{ObjectMeta: c.meta(&s.ObjectMeta), Spec: s.Spec}
	if t := s.Status; t != nil {
		out.Status = &snapshotv1.VolumeSnapshotStatus{
			BoundVolumeSnapshotContentName: t.BoundVolumeSnapshotContentName, CreationTime: t.CreationTime,
			ReadyToUse: t.ReadyToUse, RestoreSize: t.RestoreSize, Error: c.snapshotError(t.Error),
		}
	}
	return out
}

func (c cleaner) snapshotContent(s *snapshotv1.VolumeSnapshotContent) *snapshotv1.VolumeSnapshotContent {
	out := &snapshotv1.VolumeSnapshotContent{ObjectMeta: c.meta(&s.ObjectMeta), Spec: *s.Spec.DeepCopy()}
	out.Spec.Source.VolumeHandle = c.textAt(s.Spec.Source.VolumeHandle)
	out.Spec.Source.SnapshotHandle = c.textAt(s.Spec.Source.SnapshotHandle)
	if t := s.Status; t != nil {
		out.Status = &snapshotv1.VolumeSnapshotContentStatus{
			SnapshotHandle: c.textAt(t.SnapshotHandle), CreationTime: t.CreationTime, RestoreSize: t.RestoreSize,
			ReadyToUse: t.ReadyToUse, Error: c.snapshotError(t.Error),
		}
	}
	return out
}

func (c cleaner) snapshotClass(s *snapshotv1.VolumeSnapshotClass) *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: c.meta(&s.ObjectMeta), Driver: s.Driver, Parameters: c.attributes(s.Parameters),
		DeletionPolicy: s.DeletionPolicy,
	}
}

func (c cleaner) snapshotError(e *snapshotv1.VolumeSnapshotError) *snapshotv1.VolumeSnapshotError {
	if e == nil {
		return nil
	}
	return &snapshotv1.VolumeSnapshotError{Time: e.Time, Message: c.textAt(e.Message)}
}

func (c cleaner) textAt(s *string) *string {
	if s == nil {
		return nil
	}
	return ptr.To(c.text(*s))
}
