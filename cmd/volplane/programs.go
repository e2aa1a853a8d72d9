package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
)

// programs gives the command line the roles that run for long.
func programs() cli.Programs {
	return cli.Programs{
		Node: func(ctx context.Context, o cli.NodeOptions) error { return runNode(ctx, o) },
		LocalDriver: func(ctx context.Context, o cli.DriverOptions) error {
			return app.LocalDriver(ctx, driver(o))
		},
		NodeWithDriver: func(ctx context.Context, n cli.NodeOptions, d cli.DriverOptions) error {
			return runNode(ctx, n, app.Part{Name: "bundled driver", Run: func(ctx context.Context) error { return app.LocalDriver(ctx, driver(d)) }})
		},
		Controller: app.Controllers,
		Registrar:  app.Registrar,
		FlexBridge: app.FlexBridge,
	}
}

// runNode runs a node agent, after the drivers that it is to find.
func runNode(ctx context.Context, o cli.NodeOptions, drivers ...app.Part) error {
	if o.Flex != nil {
		client, err := kubernetes.NewForConfig(o.Config)
		if err != nil {
			return fmt.Errorf("client of node %s: %w", o.Name, err)
		}
		o.Flex.Client = client
		drivers = append(drivers, app.Part{Name: "flex bridge", Run: func(ctx context.Context) error { return app.FlexBridge(ctx, *o.Flex) }})
	}
	agent := app.NodeOptions{Name: o.Name, RootDir: o.RootDir, Keep: o.Keep, Config: o.Config, Drivers: csi.NewSet(), Flex: o.Flex != nil, Log: o.Log}
	return app.RunParts(ctx, o.Log, append(drivers, app.Part{
		Name: "node agent", Run: func(ctx context.Context) error { return app.Node(ctx, agent) },
	}))
}

func driver(o cli.DriverOptions) app.DriverOptions {
	return app.DriverOptions{NodeID: o.NodeID, RootDir: o.RootDir, PoolDir: o.PoolDir, Log: o.Log}
}
