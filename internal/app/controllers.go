package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/modifier"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/manifest"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

var errNoNamespace = errors.New("the namespace of leases and intents is not set: set --leader-election-namespace")

// errNoController says that a driver's controller is elsewhere. Without it volumes would be marked as attached that
// nobody has attached.
var errNoController = errors.New("says that it has a controller, but not behind this socket: run the controllers " +
	"beside the driver's controller process")

// DriverControllers returns the names of the controllers that can run for one driver
// in a cluster, in start order. The others manage objects of a whole cluster.
func DriverControllers() []string {
	return []string{
		provisioner.Declaration().Name, capacity.Declaration().Name, attacher.Declaration().Name, resizer.Declaration().Name,
		modifier.Declaration().Name, snapshotter.Declaration().Name, health.Declaration().Name,
		groupsnapshotter.Declaration().Name,
	}
}

// ClusterControllers returns the names of the controllers that can run in a cluster of Kubernetes: those for one
// driver, and the snapshot-controller, which Kubernetes does not have. The latter is two: the one for groups of
// snapshots has no name of its own, as in upstream's program.
func ClusterControllers() []string {
	return append(DriverControllers(), snapshotter.BindingDeclaration().Name)
}

// runs says whether a controller is one of those with these names.
func runs(roles []string, name string) bool {
	if name == groupsnapshotter.BindingDeclaration().Name {
		name = snapshotter.BindingDeclaration().Name
	}
	return slices.Contains(roles, name)
}

// limitGarbage sets the garbage collector's target to 50 % unless GOGC is set. The
// memory of controllers changes slowly, and a driver's Pod has little memory.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// Controllers waits for the driver and for the leases, and runs the controllers
// until ctx ends.
func Controllers(ctx context.Context, o program.ControllersOptions) error {
	if o.Namespace == "" {
		return errNoNamespace
	}
	limitGarbage()
	go newMemoryReleaser().run(ctx)
	drivers, name := csi.NewSet(), o.DummyAttacher
	if name == "" {
		d, err := csi.Await(ctx, o.Socket, csi.LogNotReady(o.Log, o.Socket))
		if err != nil {
			return parts.UnlessEnded(ctx, err)
		}
		defer d.Close()
		if d.Plugin.ControllerService && !d.HasController {
			return fmt.Errorf("driver %s at %s %w", d.Name, o.Socket, errNoController)
		}
		drivers.Put(d)
		name = d.Name
	}
	locks, err := locksOf(o, name)
	if err != nil {
		return err
	}
	return Lead(ctx, locks, o.Term, o.Log, func(ctx context.Context) error {
		return ControlPlane(ctx, ControlPlaneOptions{
			ConfigFor: func(string) (*rest.Config, error) { return rest.CopyConfig(o.Config), nil },
			Roles:     o.Roles, Drivers: drivers, CapacityPoll: o.CapacityPoll, CapacityForImmediate: o.CapacityForImmediate,
			ReconcileSync: o.ReconcileSync, DummyAttacher: o.DummyAttacher,
			Intents: driverIntents(name, o.Namespace), Log: o.Log,
		}, func() {
			o.Log.Info("controllers work", "driver", name, "controllers", strings.Join(o.Roles, ","))
		})
	})
}

// locksOf returns the locks of the leases that the process waits for; none if it does not elect.
func locksOf(o program.ControllersOptions, driver string) ([]WatchedLock, error) {
	if !o.Elects {
		return nil, nil
	}
	id, err := processIdentity()
	if err != nil {
		return nil, err
	}
	names := leaseNames(o.Roles, driver)
	config := kube.Restrict(o.Config, "leader-election", leaseRights(o.Namespace, names))
	l, err := newLeases(config, o.Namespace, id, o.Term.Deadline)
	if err != nil {
		return nil, err
	}
	return l.locks(names)
}

// driverIntents returns the place of the intents of a driver's own provisioner. Each
// driver has another place, so that a role can be restricted to it.
func driverIntents(driver, namespace string) provisioner.Logs {
	name := provisioner.Standalone().Own.Name + "-" + manifest.Base(strings.ToLower(driver))
	return provisioner.Logs{Own: kube.LogPlace{Namespace: namespace, Name: name}}
}
