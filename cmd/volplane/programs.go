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
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/process/sdnotify"
	"volplane.dev/volplane/internal/sidecar/nodesidecar"
)

// programs returns the long-running programs that the command line starts.
func programs() cli.Programs {
	return cli.Programs{
		Node:              runNode,
		Docker:            app.Docker,
		StorageProvider:   app.StorageProvider,
		LocalDriver:       app.LocalDriver,
		Controllers:       app.Controllers,
		DriverControllers: app.ClusterControllers(),
		Rights:            app.DriverControllerRights,
		Pool:              app.PoolRecords,
		Registrar:         nodesidecar.Registrar,
		SnapshotMetadata:  app.SnapshotMetadata,
		Liveness:          nodesidecar.Liveness,
		Bridge:            flex.Bridge,
	}
}

// runNode runs the bundled driver and the FlexVolume bridge, if there are any, and then
// a node agent.
func runNode(
	ctx context.Context, o options.NodeOptions, bridge *flex.BridgeOptions, driver *options.DriverOptions,
) error {
	notifier := sdnotify.New()
	// The service manager is notified at the beginning of the stop.
	defer context.AfterFunc(ctx, func() { notifier.Notify(sdnotify.Stopping) })()
	o.Restored = func(ctx context.Context, works func(context.Context) error) {
		notifier.Notify(sdnotify.Ready)
		notifier.Watch(ctx, works, o.Log)
	}
	if err := noderoot.Check(ctx, o.RootDir); err != nil {
		return err
	}
	return app.ServeNode(ctx, o, func(ctx context.Context, o options.NodeOptions) error {
		return runNodeParts(ctx, o, bridge, driver)
	})
}

func runNodeParts(
	ctx context.Context, o options.NodeOptions, bridge *flex.BridgeOptions, driver *options.DriverOptions,
) error {
	traced := trace.New()
	all := []lifecycle.Part{{Name: "trace", Run: func(ctx context.Context) error {
		return traced.Serve(ctx, trace.Socket(o.RootDir), o.Log)
	}}}
	if driver != nil {
		all = append(all, lifecycle.Part{
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
		all = append(all, lifecycle.Part{Name: "drivers of this host", Run: func(ctx context.Context) error {
			return app.Drivers(ctx, options.DriversOptions{
				FilesDir: o.DriversDir, RootDir: o.RootDir, Node: o.Name, Client: client, Controllers: controllers,
				Dial: traced.Options(), Log: o.Log,
			})
		}})
	}
	all = append(all, lifecycle.Part{Name: "controllers of this host", Run: func(ctx context.Context) error {
		return app.HostControllers(ctx, app.HostOptions{
			Node: o.Name, Config: o.Config, Reached: []*csi.Set{o.Drivers, controllers}, Metrics: o.Metrics, Log: o.Log,
		})
	}})
	if bridge != nil {
		bridge.Client = client
		all = append(all, lifecycle.Part{
			Name: "flex bridge", Run: func(ctx context.Context) error { return flex.Bridge(ctx, *bridge) },
		})
	}
	all = append(all, lifecycle.Part{
		Name: "node agent", Run: func(ctx context.Context) error { return app.Node(ctx, o) },
	})
	doors, err := app.Doors(ctx, o.Docker, o.Storage)
	if err != nil {
		return err
	}
	all = append(all, doors...)
	return lifecycle.Run(ctx, o.Log, all)
}
