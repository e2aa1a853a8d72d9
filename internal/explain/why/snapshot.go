package why

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// Snapshot returns what is decided about a snapshot, and the chain of the claim that it is of, as long as it is not
// taken; false when there is no such snapshot.
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
	if claim := decide.ClaimOf(s); claim != "" && !decide.IsReady(s) && s.DeletionTimestamp == nil {
		told, _ := w.Claim(s.Namespace, claim)
		c.Links = append(c.Links, told.Links...)
	}
	return c
}

// snapshot is what the snapshot-controller decides. Who may not read contents is told what the snapshot says.
func (w Walk) snapshot(subject string, s *snapshotv1.VolumeSnapshot) chain.Link {
	if w.SnapshotsHidden {
		return reported(subject, s)
	}
	f := decide.FactsOf(w.View, s, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	plan := decide.Snapshot(f)
	is, b := chain.Waiting, plan.Because
	switch {
	case plan.Warn, decide.ErrorOf(s) != "", f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil:
		is = chain.Problem
	case plan.Step == decide.Nothing && b.Reason == volume.ReasonSnapshotReady:
		is = chain.OK
	case plan.Step != decide.Nothing && len(s.Finalizers) == 0:
		b.Message = "the snapshot-controller has not taken up snapshot " + s.Name + " yet"
	}
	return chain.Link{Subject: subject, State: is, Because: b}
}

// reported is what a snapshot tells by itself.
func reported(subject string, s *snapshotv1.VolumeSnapshot) chain.Link {
	controller := volume.Controller("snapshot-controller")
	failed := decide.ErrorOf(s)
	switch {
	case s.DeletionTimestamp != nil:
		return chain.New(subject, chain.Waiting, volume.ReasonTerminating, "the snapshot is being deleted", controller)
	case failed != "":
		return chain.New(subject, chain.Problem, volume.ReasonSnapshotFailed, failed,
			volume.AnswerIn(failed).Next(controller))
	case decide.IsReady(s):
		return chain.New(subject, chain.OK, volume.ReasonSnapshotReady, "snapshot "+s.Name+" is ready to use", volume.Actor{})
	}
	return chain.New(subject, chain.Waiting, volume.ReasonSnapshotPending, "snapshot "+s.Name+" is not ready to use yet; "+
		"who may read contents and classes of snapshots is told why", controller)
}
