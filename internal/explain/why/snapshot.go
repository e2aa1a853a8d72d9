package why

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
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
	if claim := decide.ClaimOf(s); claim != "" && !decide.IsReady(s) && s.DeletionTimestamp == nil {
		told, _ := w.Claim(s.Namespace, claim)
		c.Links = append(c.Links, told.Links...)
	}
	return c
}

// snapshot is what the snapshot-controller decides, or what the snapshot says if its content may not be read.
func (w Walk) snapshot(subject string, s *snapshotv1.VolumeSnapshot) chain.Link {
	failed := decide.ErrorOf(s)
	if w.SnapshotsHidden {
		return reported(decide.Single(), subject, s, decide.IsReady(s), failed)
	}
	f := decide.FactsOf(w.View, s, metav1.NewTime(w.Now))
	// The objects were read from the API server itself.
	f.Absent = f.Content == nil
	return bound(decide.Single(), subject, s, decide.Snapshot(f),
		failed != "" || f.Content != nil && f.Content.Status != nil && f.Content.Status.Error != nil)
}
