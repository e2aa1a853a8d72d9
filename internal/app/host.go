package app

import (
	"context"
	"log/slog"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/volume"
)

// HostOptions configure the controllers of a host without the control plane.
type HostOptions struct {
	// Node is the name of the node.
	Node string
	// Config is the client configuration with the node's own identity.
	Config *rest.Config
	// Reached holds the drivers that the host reaches; see lease.Drivers.
	Reached []*csi.Set
	// Metrics counts what the controllers do, or is nil.
	Metrics *observe.Registry
	// Log is the log of the program.
	Log *slog.Logger
}

// HostControllers runs the controllers of a host until ctx ends: they make, attach, grow and delete the volumes of
// this node by drivers that are node-local, and all volumes of drivers that are delegated to it, while it holds their
// leases. They start when the host may call the first such driver. An error is only logged, so that the node agent
// keeps running.
func HostControllers(ctx context.Context, o HostOptions) error {
	if err := runHost(ctx, o); err != nil && ctx.Err() == nil {
		o.Log.Error("the controllers of this host do not run", "node", o.Node, "err", err)
	}
	<-ctx.Done()
	return nil
}

func runHost(ctx context.Context, o HostOptions) error {
	called := csi.NewSet()
	first := make(chan struct{}, 1)
	defer called.Subscribe(func(string) {
		lifecycle.Wake(first)
	})()
	leases, err := driverLeases(o.config(), "volplane-node_"+o.Node, o.Reached, called, o.Log)
	if err != nil {
		return err
	}
	leases.Assign = func(driver map[string]string) planes.Assignment { return planes.OfHost(driver, o.Node) }
	return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
		{Name: "drivers of this node", Run: leases.Run},
		{Name: "controllers", Run: lifecycle.After(first, func(ctx context.Context) error {
			return o.controllers(ctx, called)
		})},
	})
}

// config returns the client configuration of the host's controllers.
func (o HostOptions) config() *rest.Config {
	config := rest.CopyConfig(o.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: identity.HostPrefix + o.Node, Groups: []string{identity.HostsGroup},
	}
	return config
}

func (o HostOptions) controllers(ctx context.Context, called *csi.Set) error {
	return ControlPlane(ctx, ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return o.config(), nil },
		Roles:     DriverControllers(), Drivers: called, Scope: volume.Scope{Node: o.Node},
		Intents: provisioner.OnHost(o.Node), Metrics: o.Metrics, Log: o.Log,
	}, func() { o.Log.Info("controllers work", "node", o.Node) })
}
