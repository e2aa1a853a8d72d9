package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/observe"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/volume"
)

// ControlPlaneOptions configure the controllers of a process.
type ControlPlaneOptions struct {
	// ConfigFor returns the client configuration of ReaderRole or of a role in
	// Declarations.
	ConfigFor func(role string) (*rest.Config, error)
	// Roles are the names of the controllers to run; empty means all but those that run on demand.
	Roles []string
	// Drivers are the CSI drivers that this process reaches; nil if none of the controllers calls any.
	Drivers *csi.Set
	// CapacityPoll is the interval at which drivers are asked for their free
	// capacity; 0 means a minute.
	CapacityPoll time.Duration
	// CapacityForImmediate includes classes with immediate binding in these
	// questions.
	CapacityForImmediate bool
	// ReconcileSync is the interval at which drivers are asked what they have
	// attached; 0 means a minute.
	ReconcileSync time.Duration
	// DummyAttacher is the name of an attacher without a driver, whose attachments
	// are marked as attached; empty for none.
	DummyAttacher string
	// Health configures how drivers are asked for the health of volumes.
	Health health.Options
	// DisableForceDetachOnTimeout says that a volume is not detached by force after
	// its node has not been ready for six minutes.
	DisableForceDetachOnTimeout bool
	// MaxUnmount is that of attachdetach.Options.
	MaxUnmount time.Duration
	// Scope says which volumes belong to this process whose drivers it does not reach.
	Scope volume.Scope
	// Intents says where the provisioner's intents are; the zero value means the logs of a standalone control plane.
	Intents provisioner.Logs
	// Forgone are the resources that the process may not read and does without.
	Forgone []string
	// Flex presents FlexVolumes as volumes of the CSI drivers that a bridge serves.
	// It is for a control plane whose FlexVolumes no other program serves.
	Flex bool
	// Sidecars are what the user has chosen for the controllers of a driver.
	Sidecars Sidecars
	// Metrics counts what the controllers do, or is nil.
	Metrics *observe.Registry
	// World is filled with what the process knows of the cluster, and Metrics tells of it what waits, and why; nil means
	// that this is not told.
	World *World
	// Plane is what the controllers share with other parts of the process; nil if they are alone.
	Plane *Plane
	// Log is the log of the program.
	Log *slog.Logger
}

// runs says whether a controller is to run.
func (o ControlPlaneOptions) runs(role string) bool {
	if role == groupsnapshotter.BindingDeclaration().Name && o.Sidecars.SnapshotController.WithoutGroups {
		return false
	}
	return len(o.Roles) == 0 && !onDemand(role) || runs(o.Roles, role)
}

// declarations returns the declarations of the controllers to run.
func (o ControlPlaneOptions) declarations() []controller.Declaration {
	return slices.DeleteFunc(declarations(o.Intents), func(d controller.Declaration) bool { return !o.runs(d.Name) })
}

// reads returns the declarations of those for whom objects are kept in memory. A World knows those of all controllers.
func (o ControlPlaneOptions) reads() []controller.Declaration {
	if o.World != nil {
		return Declarations()
	}
	return o.declarations()
}

// ControlPlane runs controllers until ctx ends. It calls ready once, when the
// caches are synced and every controller is about to run.
func ControlPlane(ctx context.Context, o ControlPlaneOptions, ready func()) error {
	if o.Intents.Own == (kube.LogPlace{}) {
		o.Intents = provisioner.Standalone()
	}
	flow := kube.NewFlow()
	reader, err := clientFor(o, ReaderRole, inputs(o.reads()), flow)
	if err != nil {
		return err
	}
	caches := kube.NewCaches(reader)
	o.Plane.share(caches)
	caches.Forgo(o.Forgone...)
	caches.LimitCapacities(o.Sidecars.CapacityHome.Namespace)
	var all []parts.Part
	common := shared{
		drivers: o.Drivers, scope: o.Scope, sidecars: o.Sidecars, requests: controller.NewRequests(),
		protects: o.runs(protection.Declaration().Name),
		// What a host may create is checked, and an older API server does not expect this finalizer there.
		attaches: o.runs(attacher.Declaration().Name) && o.Scope.Node == "",
		capacity: capacity.Options{
			Drivers: o.Drivers, Immediate: o.CapacityForImmediate, Poll: o.CapacityPoll,
			Home: o.Sidecars.CapacityHome, Count: countCapacities(o.Metrics),
		},
		// Provisioners beside a driver in a cluster have an identity.
		selects: o.Sidecars.Identity == "",
		meter:   provisionMeter(o.Metrics),
		attacher: attacher.Options{
			Drivers: o.Drivers, Scope: o.Scope, ReconcileSync: o.ReconcileSync, Dummy: o.DummyAttacher,
			MaxEntries: o.Sidecars.Attacher.MaxEntries, DefaultFSType: o.Sidecars.Attacher.DefaultFSType,
		},
		health: o.Health,
		attachDetach: attachdetach.Options{
			Now: time.Now, DisableForceDetachOnTimeout: o.DisableForceDetachOnTimeout, MaxUnmount: o.MaxUnmount,
		},
	}
	if o.runs(attacher.Declaration().Name) {
		common.attachDetach.Near = func(name string) bool {
			d, ok := o.Drivers.Get(name)
			return ok && d.Controller.PublishUnpublish
		}
	}
	for _, m := range members(o.Intents) {
		if !o.runs(m.Name) {
			continue
		}
		client, err := clientFor(o, m.Name, m.Rights(), flow)
		if err != nil {
			return err
		}
		pace := o.Sidecars.pace(m.Name)
		c := m.build(controller.Env{
			Client: client, Caches: caches, Pace: ownPace(pace),
			Events: kube.NewRecorder(ctx, client, m.Name), Log: o.Log.With("controller", m.Name),
		}, common)
		measure(o.Metrics, m.Name, c)
		all = append(all, parts.Part{
			Name: m.Name, Run: whenRead(m.Declaration, caches, o.Log, limited(c.Run, pace.Timeout)),
		})
	}
	fill := func() {}
	if o.World != nil {
		fill = o.World.follow(caches)
	}
	o.measureObjects(caches)
	o.Plane.lend(caches)
	read := parts.NewWait(o.Log, "waiting for the API server")
	read.For("the objects that the controllers need have not all been read")
	err = caches.Start(ctx)
	if err != nil {
		read.Stop()
		return parts.UnlessEnded(ctx, err)
	}
	read.Over()
	fill()
	if o.Drivers != nil {
		go o.Drivers.Follow(ctx)
	}
	ready()
	return parts.Run(ctx, o.Log, all)
}

// measureObjects counts what is seen of objects and of drivers. It must be called before the caches start.
func (o ControlPlaneOptions) measureObjects(caches *kube.Caches) {
	if o.Metrics == nil {
		return
	}
	wanted := func(string) bool { return true }
	if o.World != nil {
		objects := caches.CSIDrivers()
		wanted = func(name string) bool { _, ok := objects.Get(name); return ok }
	}
	if o.Drivers != nil {
		measureDrivers(o.Metrics, o.Drivers, wanted)
	}
	if o.World != nil {
		measureWaiting(o.Metrics, o.World, o.Log)
		measureHeartbeats(o.Metrics, caches)
	}
	if o.runs(snapshotter.BindingDeclaration().Name) {
		measureSnapshots(o.Metrics, caches)
	}
}

// whenRead returns a function that runs a controller when it has read its objects. Those of custom resources may be
// installed later, and no other controller waits for them.
func whenRead(
	d controller.Declaration, caches *kube.Caches, log *slog.Logger, run func(context.Context) error,
) func(context.Context) error {
	return func(ctx context.Context) error {
		installed := parts.NewWait(log.With("controller", d.Name), "waiting for custom resources")
		defer installed.Stop()
		installed.For("the API server does not have those that the controller reads")
		if err := caches.WaitForOptional(ctx, d.Inputs); err != nil {
			return parts.UnlessEnded(ctx, err)
		}
		installed.Over()
		return run(ctx)
	}
}

// limited returns a function that runs a controller each of whose calls of a driver has a time limit; 0 leaves it as it
// is.
func limited(run func(context.Context) error, limit time.Duration) func(context.Context) error {
	if limit == 0 {
		return run
	}
	return func(ctx context.Context) error { return run(csi.Limit(ctx, limit)) }
}

// clientFor returns the client of one role. It has no client-side rate limit, but
// obeys the server's flow control, and refuses undeclared requests.
func clientFor(o ControlPlaneOptions, role string, rights []kube.Access, flow kube.Flow) (kubernetes.Interface, error) {
	config, err := o.ConfigFor(role)
	if err != nil {
		return nil, fmt.Errorf("identity of %s: %w", role, err)
	}
	config = kube.Restrict(config, role, rights)
	config.QPS = -1
	config.Wrap(o.Metrics.Requests)
	flow.Limit(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", role, err)
	}
	if o.Flex {
		return kube.Translated(client, flex.Translation()), nil
	}
	return client, nil
}
