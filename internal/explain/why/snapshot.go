package why

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// Snapshot returns what is decided about a snapshot, and the chain of its source claim, as long as the snapshot is
// not created; false if it does not exist.
func (w Walk) Snapshot(ns, name string) (chain.Chain, bool) {
	s := cluster.First(w.Snapshots, func(s *snapshotv1.VolumeSnapshot) bool { return s.Namespace == ns && s.Name == name })
	if s == nil {
		return chain.Chain{}, false
	}
	return w.AboutSnapshot(s), true
}

// AboutSnapshot is Snapshot for one that was read.
func (w Walk) AboutSnapshot(s *snapshotv1.VolumeSnapshot) chain.Chain {
	c := chain.Chain{Subject: "volumesnapshot/" + s.Name}
	c.Links = append(c.Links, w.snapshot(c.Subject, s))
	if claim := snapshot.ClaimOf(s); claim != "" && !snapshot.IsReady(s) && s.DeletionTimestamp == nil {
		told, _ := w.Claim(s.Namespace, claim)
		c.Links = append(c.Links, told.Links...)
	}
	return c
}

// snapshot is what the snapshot-controller decides, or what the snapshot says if its content may not be read.
func (w Walk) snapshot(subject string, s *snapshotv1.VolumeSnapshot) chain.Link {
	failed := snapshot.ErrorOf(s)
	if w.SnapshotsHidden {
		return reported(snapshot.Single(), subject, s, snapshot.IsReady(s), failed)
	}
	f := snapshot.FactsOf(w.View, s, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	return bound(snapshot.Single(), subject, s, snapshot.Snapshot(f),
		failed != "" || f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil)
}

// Group returns what is decided about a group snapshot; false if it does not exist.
func (w Walk) Group(ns, name string) (chain.Chain, bool) {
	g := cluster.First(w.Groups, func(g *groupv1.VolumeGroupSnapshot) bool { return g.Namespace == ns && g.Name == name })
	if g == nil {
		return chain.Chain{}, false
	}
	return w.AboutGroup(g), true
}

// AboutGroup is Group for one that was read.
func (w Walk) AboutGroup(g *groupv1.VolumeGroupSnapshot) chain.Chain {
	subject := "volumegroupsnapshot/" + g.Name
	return chain.Chain{Subject: subject, Links: []chain.Link{w.group(subject, g)}}
}

// group is what the group-snapshot-controller decides, or what the group says if its content may not be read.
func (w Walk) group(subject string, g *groupv1.VolumeGroupSnapshot) chain.Link {
	failed := groupsnapshot.ErrorOf(g)
	if w.SnapshotsHidden {
		return reported(groupsnapshot.Groups(), subject, g, groupsnapshot.IsReady(g), failed)
	}
	f := groupsnapshot.FactsOf(w.View, g, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	return bound(groupsnapshot.Groups(), subject, g, groupsnapshot.Group(f),
		failed != "" || f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil)
}

// bound is the link of a snapshot, or of a group of snapshots, from what its controller decides. failed says that an
// error is in its status or in that of its content.
func bound[S snapshot.Object[S], C snapshot.Object[C], O any](
	k *snapshot.Kind[S, C, O], subject string, s S, plan snapshot.PlanOf[S, C, O], failed bool,
) chain.Link {
	is, b := chain.Waiting, plan.Because
	switch {
	case plan.Warn, failed:
		is = chain.Problem
	case plan.Step == snapshot.Nothing && b.Reason == k.Ready:
		is = chain.OK
	case plan.Step != snapshot.Nothing && len(s.GetFinalizers()) == 0:
		b.Message = "the " + k.Controller.Name + " has not begun to process " + k.Noun + " " + s.GetName() + " yet"
	}
	return chain.Link{Subject: subject, State: is, Because: b}
}

// reported is what a snapshot, or a group of snapshots, says itself, for a user who may not read contents. failed is
// the error in its status.
func reported[S snapshot.Object[S], C snapshot.Object[C], O any](
	k *snapshot.Kind[S, C, O], subject string, s S, ready bool, failed string,
) chain.Link {
	name := k.Noun + " " + s.GetName()
	switch {
	case s.GetDeletionTimestamp() != nil:
		return chain.New(subject, chain.Waiting, volume.ReasonTerminating, "the "+k.Noun+" is being deleted", k.Controller)
	case failed != "":
		return chain.New(subject, chain.Problem, k.TakeFailed, failed, volume.AnswerIn(failed).Next(k.Controller))
	case ready:
		return chain.New(subject, chain.OK, k.Ready, name+" is ready to use", volume.Actor{})
	}
	return chain.New(subject, chain.Waiting, k.Pending, name+
		" is not ready to use yet; a user who may read contents, classes and volumes sees why", k.Controller)
}
