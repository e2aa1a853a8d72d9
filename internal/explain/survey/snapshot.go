package survey

import (
	"cmp"
	"slices"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// Snapshot returns whether a snapshot can be used, and the chain of the claim that
// it is of, as long as it is not taken; false when there is no such snapshot.
func Snapshot(w why.Walk, ns, name string) (chain.Chain, bool) {
	i := slices.IndexFunc(w.Snapshots, func(s state.Snapshot) bool { return s.Namespace == ns && s.Name == name })
	if i < 0 {
		return chain.Chain{}, false
	}
	s := w.Snapshots[i]
	c := chain.Chain{Subject: "volumesnapshot/" + name}
	c.Links = append(c.Links, snapshot(c.Subject, s))
	if s.Claim != "" && !s.Ready && !s.Deleting {
		told, _ := w.Claim(ns, s.Claim)
		c.Links = append(c.Links, told.Links...)
	}
	return c, true
}

func snapshot(subject string, s state.Snapshot) chain.Link {
	const controller = "snapshot-controller"
	switch {
	case s.Deleting && slices.Contains(s.Finalizers, volume.FinalizerRestoring):
		return chain.New(subject, chain.Waiting, volume.ReasonTerminating,
			"the snapshot is being deleted; it stays while a volume is made from it ("+volume.FinalizerRestoring+")",
			"provisioner")
	case s.Deleting && s.Error != "":
		return chain.New(subject, chain.Problem, volume.ReasonTerminating, "the snapshot is being deleted: "+s.Error,
			controller)
	case s.Deleting:
		return chain.New(subject, chain.Waiting, volume.ReasonTerminating,
			"the snapshot is being deleted with content "+cmp.Or(s.Content, "<none>"), controller)
	case s.Error != "":
		return chain.New(subject, chain.Problem, volume.ReasonSnapshotFailed, s.Error, volume.NextAfter(s.Error, controller))
	case s.Ready:
		return chain.New(subject, chain.OK, volume.ReasonAvailable, "content "+s.Content+" is ready to be used", "")
	case s.Content == "":
		return chain.New(subject, chain.Waiting, volume.ReasonSnapshotPending,
			"nobody has made a content for the snapshot yet",
			controller)
	}
	return chain.New(subject, chain.Waiting, volume.ReasonSnapshotPending,
		"content "+s.Content+" is not ready to be used yet",
		controller)
}
