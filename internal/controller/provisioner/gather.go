package provisioner

import (
	"context"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
)

// gather adds the facts from the driver's capabilities and from the API server.
func (p *provisioner) gather(ctx context.Context, f provision.ClaimFacts) (provision.ClaimFacts, error) {
	d, ok := p.Drivers.Get(f.Driver)
	if !ok {
		return f, nil
	}
	f.Scope, f.Lacks = d.Scope, lacks(d)
	f.Ours = f.Settles() || creates(d.Scope, f.Claim)
	contested := d.Place != nil && f.IsContested()
	if !f.Ours && !contested || f.Lacks != "" || f.Settles() {
		return f, nil
	}
	f.BlockDriver = isBlockDriver(d)
	p.gatherPlaces(&f, d)
	if contested {
		p.gatherContest(ctx, &f, d)
		return f, nil
	}
	f.Source.Clones, f.Source.Restores, f.Modifies = d.Controller.Clone, d.Controller.Snapshot, d.Controller.Modify
	var err error
	if f.Source.Restores && provision.IsSnapshot(f.Claim) {
		if f.Source.Snapshot, err = p.snapshot(ctx, f.Claim.Namespace, f.Claim.Spec.DataSource.Name); err != nil {
			return f, err
		}
	}
	f.Attributes, err = p.attributes(ctx, f.Claim)
	return f, err
}

// gatherPlaces adds where the volume of a claim can be.
func (p *provisioner) gatherPlaces(f *provision.ClaimFacts, d *csi.Driver) {
	f.Topology = d.Plugin.AccessibilityConstraints && !p.WithoutTopology
	switch {
	case !f.Topology:
	case d.Place == nil:
		f.Places = f.PlacesOf(p.view)
	case len(d.Place) == 0:
		f.Topology = false
	default:
		f.Places = f.PlaceOf(d.Place)
	}
}
