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
)

// dialPause is how long a driver that is not there is waited for before that
// is told, and tried again.
const dialPause = 10 * time.Second

var errNoNamespace = errors.New("no namespace is named for leases and intents")

// ControllersOptions says which controllers run beside a driver, in a cluster
// whose binder and attach/detach controller are somebody else's.
type ControllersOptions struct {
	// Config is the way to the API server.
	Config *rest.Config
	// Roles are the names of the controllers.
	Roles []string
	// Socket is the driver's; it may come later, and go and come again. It is
	// not asked for when a dummy attacher runs.
	Socket string
	// Namespace holds the leases, and what the provisioner has begun.
	Namespace string
	// Elects has it wait for the leases; otherwise the process is taken to be
	// the only one.
	Elects bool
	// Term is how the leases are held.
	Term Term
	// ReconcileSync, CapacityPoll, CapacityForImmediate and DummyAttacher are
	// as in ControlPlaneOptions.
	ReconcileSync, CapacityPoll time.Duration
	CapacityForImmediate        bool
	DummyAttacher               string
	// Log receives what is worth telling.
	Log *slog.Logger
}

// DriverControllers are the names of the controllers that can work beside a driver, in
// start order. The others look after objects of a whole cluster.
func DriverControllers() []string {
	return []string{
		provisioner.Declaration().Name, capacity.Declaration().Name, attacher.Declaration().Name, resizer.Declaration().Name,
	}
}

// sparingly has the process collect garbage at half of what is in use instead
// of as much again: what controllers hold changes little, and a driver's Pod has
// little memory. GOGC says otherwise.
func sparingly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// Controllers waits for the driver and for the leases, and runs the controllers
// until ctx ends.
func Controllers(ctx context.Context, o ControllersOptions) error {
	if o.Namespace == "" {
		return errNoNamespace
	}
	sparingly()
	go newTidier().run(ctx)
	drivers, name := csi.NewSet(), o.DummyAttacher
	if name == "" {
		d, err := await(ctx, o.Socket, o.Log)
		if err != nil {
			return ended(ctx, err)
		}
		defer d.Close()
		drivers.Put(d)
		name = d.Name
	}
	locks, err := o.locks(name)
	if err != nil {
		return err
	}
	return Lead(ctx, locks, o.Term, o.Log, func(ctx context.Context) error {
		return ControlPlane(ctx, ControlPlaneOptions{
			ConfigFor: func(string) (*rest.Config, error) { return rest.CopyConfig(o.Config), nil },
			Roles:     o.Roles, Drivers: drivers, CapacityPoll: o.CapacityPoll, CapacityForImmediate: o.CapacityForImmediate,
			ReconcileSync: o.ReconcileSync, DummyAttacher: o.DummyAttacher,
			Intents: intentsBeside(name, o.Namespace), Log: o.Log,
		}, func() {
			o.Log.Info("controllers work", "driver", name, "controllers", strings.Join(o.Roles, ","))
		})
	})
}

// await returns the driver at a socket when there is one (S3-007). It gives up
// only on one whose name cannot be a driver's.
func await(ctx context.Context, socket string, log *slog.Logger) (*csi.Driver, error) {
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

// locks returns the leases that upstream's programs for the same work hold: so
// one of theirs that still runs, or runs again, and this one never work side by
// side.
func (o ControllersOptions) locks(driver string) ([]WatchedLock, error) {
	if !o.Elects {
		return nil, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host: %w", err)
	}
	// Two processes on one host are two.
	id := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}
	var locks []WatchedLock
	names := leases(o.Roles, driver)
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

// intentsBeside returns where the provisioner beside a driver keeps what it has
// begun. No two drivers' write the same, and a role for it ends where the driver's
// own objects are.
func intentsBeside(driver, namespace string) kube.LogPlace {
	name := provisioner.Intents().Name + "-" + manifest.Base(strings.ToLower(driver))
	return kube.LogPlace{Namespace: namespace, Name: name}
}

// leases returns the names of the leases for work at one driver, in the same
// order for all: processes that want several must not wait for each other.
func leases(roles []string, driver string) []string {
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
