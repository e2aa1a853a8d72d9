package up

import (
	"context"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/garbage"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/volume"
)

// alone returns the controllers of the only control plane over its store: that is the etcd in its process.
func (o Options) alone(
	server *apiserver.Server, common app.ControlPlaneOptions, plane *app.Plane, reached []*csi.Set, called *csi.Set,
	ready func(),
) []parts.Part {
	works := make(chan struct{})
	common.Drivers, common.Scope, common.Plane = called, volume.Scope{Node: o.Node, Rest: true}, plane
	return []parts.Part{
		{Name: "leases of drivers", Run: func(ctx context.Context) error {
			return app.LeadDrivers(ctx, server.ClientConfig(app.User(app.LeasesRole)), o.Node, reached, called, o.Log)
		}},
		{Name: "controllers", Run: func(ctx context.Context) error {
			return app.ControlPlane(ctx, common, func() {
				ready()
				close(works)
			})
		}},
		{Name: "garbage collector", Run: func(ctx context.Context) error {
			// It reads all objects at its start, which must not delay the other parts.
			select {
			case <-ctx.Done():
				return nil
			case <-works:
				return garbage.Run(ctx, server.ClientConfig(garbage.User))
			}
		}},
	}
}

// shared returns the controllers of a control plane over a store that others may use, too.
func (o Options) shared(
	server *apiserver.Server, common app.ControlPlaneOptions, reached []*csi.Set, ready func(),
) []parts.Part {
	return []parts.Part{{Name: "controllers", Run: func(ctx context.Context) error {
		identity, err := app.PlaneIdentity(o.Node, o.DataDir)
		if err != nil {
			return err
		}
		return app.Shared(ctx, app.SharedOptions{
			ControlPlaneOptions: common, Node: o.Node, Identity: identity, Reached: reached,
			Once: func(ctx context.Context) error { return garbage.Run(ctx, server.ClientConfig(garbage.User)) },
		}, ready)
	}}}
}
