package why

import (
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// Group returns what is decided about a group snapshot; false when there is no such group.
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
	about := w.group
	if w.SnapshotsHidden {
		about = reportedGroup
	}
	return chain.Chain{Subject: subject, Links: []chain.Link{about(subject, g)}}
}

// group is what the group-snapshot-controller decides.
func (w Walk) group(subject string, g *groupv1.VolumeGroupSnapshot) chain.Link {
	f := decide.FactsOf(w.View, g, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	plan := decide.Group(f)
	is, b := chain.Waiting, plan.Because
	switch {
	case plan.Warn, decide.ErrorOf(g) != "", f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil:
		is = chain.Problem
	case plan.Step == snapshot.Nothing && b.Reason == volume.ReasonGroupReady:
		is = chain.OK
	case plan.Step != snapshot.Nothing && len(g.Finalizers) == 0:
		b.Message = "the group-snapshot-controller has not taken up group snapshot " + g.Name + " yet"
	}
	return chain.Link{Subject: subject, State: is, Because: b}
}

// reportedGroup is what a group tells by itself, to somebody who may not read contents.
func reportedGroup(subject string, g *groupv1.VolumeGroupSnapshot) chain.Link {
	controller := volume.Controller("group-snapshot-controller")
	failed := decide.ErrorOf(g)
	switch {
	case g.DeletionTimestamp != nil:
		return chain.New(subject, chain.Waiting, volume.ReasonTerminating, "the group snapshot is being deleted", controller)
	case failed != "":
		return chain.New(subject, chain.Problem, volume.ReasonGroupFailed, failed, volume.AnswerIn(failed).Next(controller))
	case decide.IsReady(g):
		return chain.New(subject, chain.OK, volume.ReasonGroupReady,
			"group snapshot "+g.Name+" is ready to use", volume.Actor{})
	}
	return chain.New(subject, chain.Waiting, volume.ReasonGroupPending, "group snapshot "+g.Name+
		" is not ready to use yet; who may read contents, classes and volumes is told why", controller)
}
