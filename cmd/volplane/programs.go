package main

import (
	"context"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
)

// programs gives the command line the roles that run for long.
func programs() cli.Programs {
	return cli.Programs{
		Node: func(ctx context.Context, o cli.NodeOptions) error { return app.Node(ctx, node(o)) },
		LocalDriver: func(ctx context.Context, o cli.DriverOptions) error {
			return app.LocalDriver(ctx, driver(o))
		},
		NodeWithDriver: func(ctx context.Context, n cli.NodeOptions, d cli.DriverOptions) error {
			return app.RunParts(ctx, n.Log, []app.Part{
				{Name: "bundled driver", Run: func(ctx context.Context) error { return app.LocalDriver(ctx, driver(d)) }},
				{Name: "node agent", Run: func(ctx context.Context) error { return app.Node(ctx, node(n)) }},
			})
		},
		Controller: app.Controllers,
	}
}

func node(o cli.NodeOptions) app.NodeOptions {
	return app.NodeOptions{Name: o.Name, RootDir: o.RootDir, Config: o.Config, Drivers: csi.NewSet(), Log: o.Log}
}

func driver(o cli.DriverOptions) app.DriverOptions {
	return app.DriverOptions{NodeID: o.NodeID, RootDir: o.RootDir, PoolDir: o.PoolDir, Log: o.Log}
}
