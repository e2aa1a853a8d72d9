package why

import (
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

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
		b.Message = "the " + k.Controller.Name + " has not taken up " + k.Noun + " " + s.GetName() + " yet"
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
