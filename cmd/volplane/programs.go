package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/noderoot"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// programs returns the long-running programs that the command line starts.
func programs() cli.Programs {
	return cli.Programs{
		Node:              runNode,
		LocalDriver:       app.LocalDriver,
		Controllers:       app.Controllers,
		DriverControllers: app.ClusterControllers(),
		Rights:            app.DriverControllerRights,
		Pool:              app.PoolRecords,
		Registrar:         app.Registrar,
		Bridge:            flex.Bridge,
	}
}

// runNode runs the bundled driver and the FlexVolume bridge, if there are any, and then
// a node agent.
func runNode(
	ctx context.Context, o program.NodeOptions, bridge *cli.BridgeOptions, driver *program.DriverOptions,
) error {
	if err := noderoot.Check(ctx, o.RootDir); err != nil {
		return err
	}
	traced := trace.New()
	all := []parts.Part{{Name: "trace", Run: func(ctx context.Context) error {
		return traced.Serve(ctx, trace.Socket(o.RootDir), o.Log)
	}}}
	if driver != nil {
		all = append(all, parts.Part{
			Name: "bundled driver", Run: func(ctx context.Context) error { return app.LocalDriver(ctx, *driver) },
		})
	}
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return fmt.Errorf("client of node %s: %w", o.Name, err)
	}
	o.Drivers, o.Dial, o.Bridged = csi.NewSet(), traced.Options(), bridge != nil
	controllers := csi.NewSet()
	if o.DriversDir != "" {
		all = append(all, parts.Part{Name: "drivers of this host", Run: func(ctx context.Context) error {
			return app.Drivers(ctx, program.DriversOptions{
				FilesDir: o.DriversDir, RootDir: o.RootDir, Node: o.Name, Client: client, Controllers: controllers,
				Dial: traced.Options(), Log: o.Log,
			})
		}})
	}
	all = append(all, parts.Part{Name: "controllers of this host", Run: func(ctx context.Context) error {
		return app.HostControllers(ctx, app.HostOptions{
			Node: o.Name, Config: o.Config, Reached: []*csi.Set{o.Drivers, controllers}, Log: o.Log,
		})
	}})
	if bridge != nil {
		bridge.Client = client
		all = append(all, parts.Part{
			Name: "flex bridge", Run: func(ctx context.Context) error { return flex.Bridge(ctx, *bridge) },
		})
	}
	return parts.Run(ctx, o.Log, append(all, parts.Part{
		Name: "node agent", Run: func(ctx context.Context) error { return app.Node(ctx, o) },
	}))
}
