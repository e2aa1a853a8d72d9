package app

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/lease"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

// onlyPlane is the holder's name of a control plane whose store is in its process. A process that has its objects in
// another store, because they were moved or restored, is its only successor.
const onlyPlane = "volplane-up"

// LeadDrivers holds the leases of the drivers that the only control plane over its store reaches, until ctx ends. node
// is the name of its node, and config has the identity of LeasesRole.
func LeadDrivers(
	ctx context.Context, config *rest.Config, node string, reached []*csi.Set, called *csi.Set, log *slog.Logger,
) error {
	leases, err := driverLeases(config, onlyPlane, reached, called, log)
	if err != nil {
		return err
	}
	leases.Assign = func(driver map[string]string) planes.Assignment {
		return planes.OfControlPlane(driver, volume.Scope{Node: node, Rest: true}, true)
	}
	return leases.Run(ctx)
}

// driverLeases returns the leases of the drivers of a standalone control plane for a process with that identity, whose
// configuration must allow driverLeaseRights. The caller sets Assign.
func driverLeases(
	config *rest.Config, identity string, reached []*csi.Set, called *csi.Set, log *slog.Logger,
) (*lease.Drivers, error) {
	config = kube.Restrict(config, LeasesRole, driverLeaseRights())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the leases: %w", err)
	}
	leases, err := lease.NewClient(config, volume.NamespaceSystem, identity, nil)
	return &lease.Drivers{
		Reached: reached, Called: called, Objects: client, Leases: leases,
		Names: func(driver string) []string { return leaseNames(DriverControllers(), driver) }, Log: log,
	}, err
}

// candidate returns a process beside a driver as the candidate for its leases, or for none if it does not elect.
func candidate(o options.ControllersOptions, driver string) (*lease.Candidate, error) {
	if !o.Elects {
		return &lease.Candidate{}, nil
	}
	id, err := lease.ProcessIdentity()
	if err != nil {
		return nil, err
	}
	names := leaseNames(o.Roles, driver)
	if node := o.Provisioner.OnNode.Node; node != "" {
		// Nothing excludes processes on different nodes from each other.
		for i, name := range names {
			names[i] = volume.LeaseOnNode(name, node)
		}
	}
	config := kube.Restrict(o.Config, "leader-election", lease.Rights(o.Namespace, names))
	leases, err := lease.NewClient(config, o.Namespace, id, o.LeaseLabels)
	if err != nil {
		return nil, err
	}
	term := o.Term
	term.LongOthers = !o.ShortLeases
	return leases.Candidate(names, term, o.Log)
}

// refuseOthers returns an error if others call the driver, unless the process has an option to start beside them.
func refuseOthers(ctx context.Context, o options.ControllersOptions, driver string) error {
	if o.BesideOthers {
		return nil
	}
	names := leaseNames(o.Roles, driver)
	client, err := kubernetes.NewForConfig(
		kube.Restrict(o.Config, "leader-election", append(lease.Rights(o.Namespace, names), lease.OthersRight())))
	if err != nil {
		return fmt.Errorf("client of the leases: %w", err)
	}
	others := lease.Others{
		Client: client.CoordinationV1(), Driver: driver, Names: names, Namespace: o.Namespace, Log: o.Log,
		// The leases of a node have other names.
		Elects: o.Elects && o.Provisioner.OnNode.Node == "",
	}
	return others.Refuse(ctx)
}
