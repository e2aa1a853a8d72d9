package provisioner

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
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
	p.gatherHere(&f, d, contested)
	if contested && !p.gatherContest(ctx, &f, d) {
		return f, nil
	}
	err := p.gatherSource(ctx, &f, d)
	if err != nil || contested {
		return f, err
	}
	f.Modifies = d.Controller.Modify
	f.Attributes, err = p.attributes(ctx, f.Claim)
	return f, err
}

// gatherSource adds what the driver can do with sources of data, and the snapshot to restore.
func (p *provisioner) gatherSource(ctx context.Context, f *provision.ClaimFacts, d *csi.Driver) (err error) {
	f.Source.Clones, f.Source.Restores = d.Controller.Clone, d.Controller.Snapshot
	if f.Source.Restores && provision.IsSnapshot(f.Claim) {
		f.Source.Snapshot, err = p.snapshot(ctx, f.Claim.Namespace, f.Claim.Spec.DataSource.Name)
	}
	return err
}

// gatherHere adds the node on which the volume of a claim is to be made.
func (p *provisioner) gatherHere(f *provision.ClaimFacts, d *csi.Driver, contested bool) {
	f.Local = d.Scope.Node != ""
	if f.Scheduled = d.Place != nil && !contested; d.Place != nil {
		f.Here = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.Scope.Node, Labels: d.Place}}
		return
	}
	f.Here = cluster.Find(p.view.Nodes, cmp.Or(d.Scope.Node, volume.SelectedNode(f.Claim.Annotations)))
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

// isBlockDriver says whether what the driver attaches to a node, stages there and expands there is certainly a block
// device. A process of the driver that serves no node does not say that.
func isBlockDriver(d *csi.Driver) bool {
	return d.Controller.PublishUnpublish && d.Node.StageUnstage && d.Node.Expand
}

// lacks returns the name of a capability that the driver lacks and that creating and deleting
// volumes requires; "" if it has all of them.
func lacks(d *csi.Driver) string {
	switch {
	case !d.Plugin.ControllerService:
		return "CONTROLLER_SERVICE"
	case !d.Controller.CreateDelete:
		return "CREATE_DELETE_VOLUME"
	}
	return ""
}
