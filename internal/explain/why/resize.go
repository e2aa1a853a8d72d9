package why

import (
	"cmp"

	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// resize explains a claim that requests more than its capacity.
func (f facts) resize() []chain.Link {
	facts := resize.Facts{Claim: f.Claim, Volume: f.Volume, Reachable: true, Expands: true, NodeExpands: true}
	for _, p := range f.users() {
		facts.Node = cmp.Or(facts.Node, p.Spec.NodeName)
	}
	facts.Unused = facts.Node == ""
	c := resize.ConditionOf(facts)
	if c.Next.IsZero() {
		return nil
	}
	subject := "resize/" + f.ClaimName
	if l, ok := f.failedResize(subject, c); ok {
		return []chain.Link{l}
	}
	return []chain.Link{f.tell(subject, c)}
}

// failedResize reports what no condition shows: that a node could not expand a filesystem
// is only in an event, and that a driver cannot be called is recorded nowhere.
func (f facts) failedResize(subject string, c volume.Condition) (chain.Link, bool) {
	switch {
	case c.Stuck && resize.Failure(f.Claim) == "":
		return f.Failed(subject, f.Claim, c.Reason, c.Next)
	case c.Reason == volume.ReasonNodeResizePending:
		return f.Failed(subject, f.Claim, volume.ReasonFailedNodeResize, c.Next)
	case c.Reason != volume.ReasonResizing:
		return chain.Link{}, false
	}
	if l, ok := f.Failed(subject, f.Claim, volume.ReasonFailedResize, c.Next); ok {
		return l, true
	}
	b, away := f.Uncalled(f.source(), f.servedOn())
	return chain.Broken(subject, b), away
}
