package app

import (
	"context"
	"errors"
	"maps"
	"slices"

	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/options"
)

// errWholeCluster refuses what there may be only once, in a process that is on each node.
var errWholeCluster = errors.New("the snapshot-controller is one for the whole cluster, and cannot run on each node " +
	"beside a provisioner with --node-deployment")

// placeOnNode puts the driver in the set of those that the controllers call. On each node, they call it for the volumes
// of the node where it says that it is.
func placeOnNode(ctx context.Context, o options.ControllersOptions, d *csi.Driver, drivers *csi.Set) error {
	node := o.Provisioner.OnNode.Node
	if node == "" {
		drivers.Put(d)
		return nil
	}
	if slices.Contains(o.Roles, snapshotter.BindingDeclaration().Name) {
		return errWholeCluster
	}
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	o.Log.Info("the controllers work for the volumes of one node", "node", node, "topology", info.Topology)
	drivers.Put(d.On(node, info.Topology))
	return nil
}

// errMoved says that what the controllers know of their node is not true any more.
var errMoved = errors.New("the driver reports a different topology of this node than when the controllers were started")

// whileThere calls run, and ends it with an error when the driver, after it has come back, says that the node is
// elsewhere. A topology that it had before could be that of another node now, whose volumes would be deleted here.
func whileThere(ctx context.Context, drivers *csi.Set, run func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	back := make(chan string, 1)
	defer drivers.Subscribe(func(name string) {
		select {
		case back <- name:
		default:
		}
	})()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case name := <-back:
				if hasMoved(ctx, drivers, name) {
					end(errMoved)
				}
			}
		}
	}()
	err := run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errMoved) {
		return cause
	}
	return err
}

// hasMoved says whether a driver says that its node is elsewhere. One that does not answer is asked when it is back.
func hasMoved(ctx context.Context, drivers *csi.Set, name string) bool {
	d, ok := drivers.Get(name)
	if !ok || d.Place == nil {
		return false
	}
	info, err := d.NodeInfo(ctx)
	return err == nil && !maps.Equal(info.Topology, d.Place)
}
