package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

var errNoNamespace = errors.New("the namespace of leases and intents is not set: set --leader-election-namespace")

// errNoController says that a driver's controller is elsewhere. Without it volumes would be marked as attached that
// nobody has attached.
var errNoController = errors.New("says that it has a controller, but not behind this socket: run the controllers " +
	"beside the driver's controller process")

// Controllers waits for the driver and for the leases, and runs the controllers until ctx ends. Metrics and health are
// served from the beginning. In a container, the kubelet is given an error, too.
func Controllers(ctx context.Context, o options.ControllersOptions) error {
	ready := &readiness{}
	return serveBeside(ctx, o.HTTP, o.Version, ready.checks(), o.Log,
		func(ctx context.Context, metrics *observe.Registry) error {
			return runControllers(ctx, o, metrics, ready)
		})
}

// runControllers is Controllers without a server.
func runControllers(
	ctx context.Context, o options.ControllersOptions, metrics *observe.Registry, ready *readiness,
) error {
	if o.Namespace == "" {
		return errNoNamespace
	}
	o.Roles = withNodeWatcher(o.Roles, o.HealthMonitor)
	drivers, name := csi.NewSet(), o.DummyAttacher
	var d *csi.Driver
	if name == "" && needDriver(o.Roles) {
		var err error
		d, err = awaitController(ctx, o, csi.WithMeter(metrics.Call), csi.WithCallLog(csi.NewCallLog(o.Log)))
		if d == nil {
			return err
		}
		defer d.Close()
		name = d.Name
		if err = placeOnNode(ctx, o, d, drivers); err != nil {
			return lifecycle.UnlessEnded(ctx, err)
		}
	}
	sidecars, err := sidecarsOf(ctx, o, name)
	if err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	ready.driver.Store(true)
	elected, err := candidate(o, name)
	if err != nil {
		return err
	}
	metrics.Follow(elected)
	return elected.Run(ctx, func(ctx context.Context) error {
		ready.leads.Store(true)
		defer ready.rests()
		if err := refuseOthers(ctx, o, name); err != nil || ctx.Err() != nil {
			return err
		}
		plane := planeOf(o, name, sidecars)
		plane.Drivers, plane.Metrics = drivers, metrics
		var err error
		if plane.Forgone, err = forgone(ctx, o, d); err != nil {
			return lifecycle.UnlessEnded(ctx, err)
		}
		return keepIntents(ctx, o, plane.Intents, func(ctx context.Context, logs provisioner.Logs) error {
			plane.Intents = logs
			return whileThere(ctx, drivers, func(ctx context.Context) error {
				return ControlPlane(ctx, plane, func() {
					ready.works.Store(true)
					o.Log.Info("controllers work", "driver", name, "controllers", strings.Join(o.Roles, ","))
				})
			})
		})
	})
}

// planeOf returns the options of the controllers beside a driver.
func planeOf(o options.ControllersOptions, driver string, sidecars Sidecars) ControlPlaneOptions {
	config := rest.CopyConfig(o.Config)
	// The API server is near: to compress watches costs both more than the bytes.
	config.DisableCompression = true
	return ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return config, nil },
		Roles:     o.Roles, Intents: driverIntents(driver, o.Provisioner.OnNode.Node, o.Namespace),
		Sidecars: sidecars, Log: o.Log,
	}
}

// needDriver says whether one of the controllers calls a driver.
func needDriver(roles []string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return slices.Contains(DriverControllers(), r) })
}

// awaitController waits for the driver with its controller; it returns nil without an error if ctx ends before.
func awaitController(
	ctx context.Context, o options.ControllersOptions, opts ...csi.Option,
) (*csi.Driver, error) {
	told, notReady := false, csi.LogNotReady(o.Log, o.Socket)
	d, err := csi.Await(ctx, o.Socket, func(cause error) {
		told = true
		notReady(cause)
	}, opts...)
	if err != nil {
		return nil, lifecycle.UnlessEnded(ctx, err)
	}
	if told {
		o.Log.Info("the driver answers", "driver", d.Name, "socket", o.Socket)
	}
	if d.Plugin.ControllerService && !d.HasController {
		return nil, errors.Join(fmt.Errorf("driver %s at %s %w", d.Name, o.Socket, errNoController), d.Close())
	}
	return d, nil
}

// withNodeWatcher adds the watcher of nodes to the controllers if it is asked for, and if they say how volumes are.
func withNodeWatcher(roles []string, o sidecar.HealthMonitorOptions) []string {
	if !o.WatchesNodes || !slices.Contains(roles, health.Declaration().Name) {
		return roles
	}
	return append(slices.Clip(roles), health.WatcherDeclaration().Name)
}
