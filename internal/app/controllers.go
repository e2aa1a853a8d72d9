package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/manifest"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// dialPause limits one attempt to reach a driver. After it, a warning is logged and
// the next attempt starts.
const dialPause = 10 * time.Second

var errNoNamespace = errors.New("the namespace of leases and intents is not set: set --leader-election-namespace")

// DriverControllers returns the names of the controllers that can run for one driver
// in a cluster, in start order. The others manage objects of a whole cluster.
func DriverControllers() []string {
	return []string{
		provisioner.Declaration().Name, capacity.Declaration().Name, attacher.Declaration().Name, resizer.Declaration().Name,
	}
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
		d, err := dialDriver(ctx, o.Socket, o.Log)
		if err != nil {
			return parts.UnlessEnded(ctx, err)
		}
		defer d.Close()
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

// dialDriver waits until a driver serves the socket, and returns it (S3-007). It
// fails only if ctx ends or the driver has an invalid name.
func dialDriver(ctx context.Context, socket string, log *slog.Logger) (*csi.Driver, error) {
	for {
		try, cancel := context.WithTimeout(ctx, dialPause)
		d, err := csi.Dial(try, socket)
		if err == nil || errors.Is(err, csi.ErrName) {
			cancel()
			return d, err
		}
		<-try.Done()
		cancel()
		if ctx.Err() != nil {
			return nil, err
		}
		log.Warn("the driver does not answer yet", "socket", socket, "err", err)
	}
}

// locksOf returns the leases that the CSI sidecars hold for the same work, so that a
// sidecar and this process never work at the same time.
func locksOf(o program.ControllersOptions, driver string) ([]WatchedLock, error) {
	if !o.Elects {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host: %w", err)
	}
	// Two processes on one host need different identities.
	id := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}
	var locks []WatchedLock
	names := leaseNames(o.Roles, driver)
	config := kube.Restrict(o.Config, "leader-election", leaseRights(o.Namespace, names))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the leases: %w", err)
	}
	for _, name := range names {
		lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, name, id, config,
			o.Term.Deadline)
		if err != nil {
			return nil, fmt.Errorf("lease %s: %w", name, err)
		}
		locks = append(locks, WatchedLock{Interface: lock, Leases: client.CoordinationV1().Leases(o.Namespace), Name: name})
	}
	return locks, nil
}

// driverIntents returns the place of the intents of a driver's own provisioner. Each
// driver has another place, so that a role can be restricted to it.
func driverIntents(driver, namespace string) kube.LogPlace {
	name := provisioner.Intents().Name + "-" + manifest.Base(strings.ToLower(driver))
	return kube.LogPlace{Namespace: namespace, Name: name}
}

// leaseNames returns the names of the leases for controllers of one driver. Their order
// is always the same, so that processes that acquire several cannot deadlock.
func leaseNames(roles []string, driver string) []string {
	driver = regexp.MustCompile("[^a-zA-Z0-9-]").ReplaceAllString(driver, "-")
	var out []string
	for _, l := range []struct{ role, name string }{
		{provisioner.Declaration().Name, driver},
		{capacity.Declaration().Name, driver},
		{attacher.Declaration().Name, "external-attacher-leader-" + driver},
		{resizer.Declaration().Name, "external-resizer-" + driver},
	} {
		if slices.Contains(roles, l.role) && !slices.Contains(out, l.name) {
			out = append(out, l.name)
		}
	}
	return out
}
