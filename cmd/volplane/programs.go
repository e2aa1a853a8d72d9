package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/parts"
)

// programs returns the long-running programs that the command line starts.
func programs() cli.Programs {
	return cli.Programs{
		Node: func(ctx context.Context, o cli.NodeOptions) error { return runNode(ctx, o) },
		LocalDriver: func(ctx context.Context, o cli.DriverOptions) error {
			return app.LocalDriver(ctx, driver(o))
		},
		NodeWithDriver: func(ctx context.Context, n cli.NodeOptions, d cli.DriverOptions) error {
			return runNode(ctx, n, parts.Part{
				Name: "bundled driver", Run: func(ctx context.Context) error { return app.LocalDriver(ctx, driver(d)) },
			})
		},
		Controllers: func(ctx context.Context, o cli.ControllersOptions) error {
			return app.Controllers(ctx, controllers(o))
		},
		DriverControllers: app.DriverControllers(),
		Rights:            app.DriverControllerRights,
		Pool:              app.PoolRecords,
		Registrar: func(ctx context.Context, o cli.RegistrarOptions) error {
			return app.Registrar(ctx, app.RegistrarOptions(o))
		},
		Bridge: flex.Bridge,
	}
}

// runNode runs the given drivers, the FlexVolume bridge if there is one, and then a
// node agent.
func runNode(ctx context.Context, o cli.NodeOptions, drivers ...parts.Part) error {
	if o.Bridge != nil {
		client, err := kubernetes.NewForConfig(o.Config)
		if err != nil {
			return fmt.Errorf("client of node %s: %w", o.Name, err)
		}
		o.Bridge.Client = client
		drivers = append(drivers, parts.Part{
			Name: "flex bridge", Run: func(ctx context.Context) error { return flex.Bridge(ctx, *o.Bridge) },
		})
	}
	agent := app.NodeOptions{
		Name: o.Name, RootDir: o.RootDir, Keep: o.Keep, Config: o.Config, Drivers: csi.NewSet(), Flex: o.Bridge != nil,
		Log: o.Log,
	}
	return parts.Run(ctx, o.Log, append(drivers, parts.Part{
		Name: "node agent", Run: func(ctx context.Context) error { return app.Node(ctx, agent) },
	}))
}

func driver(o cli.DriverOptions) app.DriverOptions {
	return app.DriverOptions{NodeID: o.NodeID, RootDir: o.RootDir, PoolDir: o.PoolDir, Log: o.Log}
}

func controllers(o cli.ControllersOptions) app.ControllersOptions {
	return app.ControllersOptions{
		Config: o.Config, Roles: o.Roles, Socket: o.Socket, Namespace: o.Namespace, Elects: o.Elects,
		Term:          app.Term{Duration: o.Duration, Deadline: o.Deadline, Retry: o.Retry},
		ReconcileSync: o.ReconcileSync, CapacityPoll: o.CapacityPoll, CapacityForImmediate: o.CapacityForImmediate,
		DummyAttacher: o.DummyAttacher, Log: o.Log,
	}
}
