package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/observe"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/volume"
)

// HostOptions configure the controllers of a host without the control plane.
type HostOptions struct {
	// Node is the name of the node.
	Node string
	// Config is the client configuration with the node's own identity.
	Config *rest.Config
	// Reached holds the drivers that the host reaches; see DriverLeads.
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
	client, err := kubernetes.NewForConfig(kube.Restrict(o.Config, "host", kube.Read("storage.k8s.io", "csidrivers")))
	if err != nil {
		return fmt.Errorf("client of node %s: %w", o.Node, err)
	}
	called := csi.NewSet()
	first := make(chan struct{}, 1)
	defer called.Subscribe(func(string) {
		select {
		case first <- struct{}{}:
		default:
		}
	})()
	leads := &DriverLeads{Reached: o.Reached, Called: called, Log: o.Log}
	config := kube.Restrict(o.config(), LeasesRole, leaseRights(volume.NamespaceSystem, nil))
	if leads.Locks, err = driverLocks(config, "volplane-node_"+o.Node); err != nil {
		return err
	}
	drivers, err := readCSIDrivers(ctx, client, leads.Changed)
	if err != nil {
		return parts.UnlessEnded(ctx, err)
	}
	leads.Homes = drivers.ofHost(o.Node)
	return parts.Run(ctx, o.Log, []parts.Part{
		{Name: "drivers of this node", Run: leads.Run},
		{Name: "controllers", Run: parts.After(first, func(ctx context.Context) error { return o.controllers(ctx, called) })},
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

// hostRights returns the rights of the controllers of all hosts. The API server restricts each of them to the volumes
// of its own node and to the drivers that are delegated to it, grants it their intent logs, and lets it read no Secrets
// beyond those that RBAC gives it.
func hostRights() []kube.Access {
	out := leaseRights(volume.NamespaceSystem, nil)
	for _, d := range declarations(provisioner.Standalone()) {
		if slices.Contains(DriverControllers(), d.Name) {
			out = append(out, slices.DeleteFunc(d.Rights(), func(a kube.Access) bool {
				return a.Resource == "secrets" || a.Resource == "configmaps"
			})...)
		}
	}
	return out
}
