package why

import (
	"volplane.dev/volplane/internal/decide/modify"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// modify explains a claim that requests the attributes of another class.
func (f facts) modify() []chain.Link {
	c := modify.ConditionOf(f.Claim, f.Volume)
	if c.Next.IsZero() {
		return nil
	}
	subject := "attributes/" + f.ClaimName
	if l, ok := f.Failed(subject, f.Claim, volume.ReasonFailedModify, c.Next); ok && modify.Failure(f.Claim) == "" {
		return []chain.Link{l}
	}
	if b, away := f.Uncalled(f.source(), f.servedOn()); away && !c.Stuck {
		return []chain.Link{chain.Broken(subject, b)}
	}
	return []chain.Link{f.tell(subject, c)}
}
