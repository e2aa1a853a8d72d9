package statefile

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// learnGroups remembers by which labels groups choose their claims: of claims no other ones are kept.
func (c cleaner) learnGroups(groups []*groupv1.VolumeGroupSnapshot, classes []*groupv1.VolumeGroupSnapshotClass) {
	for _, class := range classes {
		c.add(class.Parameters)
	}
	for _, g := range groups {
		if g.Spec.Source.Selector == nil {
			continue
		}
		for key := range g.Spec.Source.Selector.MatchLabels {
			c.chosenBy[key] = true
		}
		for _, e := range g.Spec.Source.Selector.MatchExpressions {
			c.chosenBy[e.Key] = true
		}
	}
}

// chosen returns the labels by which groups choose a claim.
func (c cleaner) chosen(m *metav1.ObjectMeta) map[string]string {
	var out map[string]string
	for key, value := range m.Labels {
		if !c.chosenBy[key] {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out
}

func (c cleaner) group(g *groupv1.VolumeGroupSnapshot) *groupv1.VolumeGroupSnapshot {
	out := &groupv1.VolumeGroupSnapshot{ObjectMeta: c.meta(&g.ObjectMeta), Spec: g.Spec}
	if t := g.Status; t != nil {
		out.Status = &groupv1.VolumeGroupSnapshotStatus{
			BoundVolumeGroupSnapshotContentName: t.BoundVolumeGroupSnapshotContentName, CreationTime: t.CreationTime,
			ReadyToUse: t.ReadyToUse, Error: c.snapshotError(t.Error),
		}
	}
	return out
}

func (c cleaner) groupContent(g *groupv1.VolumeGroupSnapshotContent) *groupv1.VolumeGroupSnapshotContent {
	out := &groupv1.VolumeGroupSnapshotContent{ObjectMeta: c.meta(&g.ObjectMeta), Spec: *g.Spec.DeepCopy()}
	out.Spec.Source.VolumeHandles = c.texts(g.Spec.Source.VolumeHandles)
	if given := out.Spec.Source.GroupSnapshotHandles; given != nil {
		given.VolumeGroupSnapshotHandle = c.text(given.VolumeGroupSnapshotHandle)
		given.VolumeSnapshotHandles = c.texts(given.VolumeSnapshotHandles)
	}
	if t := g.Status; t != nil {
		out.Status = &groupv1.VolumeGroupSnapshotContentStatus{
			VolumeGroupSnapshotHandle: c.textAt(t.VolumeGroupSnapshotHandle), CreationTime: t.CreationTime,
			ReadyToUse: t.ReadyToUse, Error: c.snapshotError(t.Error),
		}
		for _, s := range t.VolumeSnapshotInfoList {
			s.VolumeHandle, s.SnapshotHandle = c.text(s.VolumeHandle), c.text(s.SnapshotHandle)
			out.Status.VolumeSnapshotInfoList = append(out.Status.VolumeSnapshotInfoList, s)
		}
	}
	return out
}

func (c cleaner) groupClass(g *groupv1.VolumeGroupSnapshotClass) *groupv1.VolumeGroupSnapshotClass {
	return &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: c.meta(&g.ObjectMeta), Driver: g.Driver, Parameters: c.attributes(g.Parameters),
		DeletionPolicy: g.DeletionPolicy,
	}
}
