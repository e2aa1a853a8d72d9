package placement

import (
	"context"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/placement"
)

// reconcileClaim selects a node for a claim whose volume is to be made at once on one of several nodes.
func (p *placer) reconcileClaim(ctx context.Context, key controller.Key) error {
	c, unplaced := p.gatherUnplaced(key)
	p.setUnplaced(key, unplaced)
	if !unplaced {
		return nil
	}
	var nodes []placement.Node
	for _, n := range p.nodes.List() {
		nodes = append(nodes, p.node(n, nil))
	}
	plan := placement.Unplaced(c, nodes)
	for _, selected := range plan.Select {
		_, err := p.claims.Update(ctx, selected)
		return err
	}
	p.Events.Warn(c.Object, plan.Because)
	return nil
}

// gatherUnplaced returns the facts about a claim, and whether it is unplaced.
func (p *placer) gatherUnplaced(key controller.Key) (c placement.Claim, unplaced bool) {
	claim, ok := p.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return c, false
	}
	c = placement.Claim{Name: claim.Name, Object: claim}
	name, _ := bind.ClassOf(claim)
	if c.Class, ok = p.classes.Get(name); !ok {
		return c, false
	}
	p.aboutDriver(&c)
	return c, placement.IsUnplaced(claim, c.Class, c.Driver)
}
