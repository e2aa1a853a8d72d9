package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/flex/migrate"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/gather/world"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/sidecar/snapshotmetadata"
	"volplane.dev/volplane/internal/volume"
)

// declarations returns the declarations of the controllers to run.
func (o ControlPlaneOptions) declarations() []controller.Declaration {
	return slices.DeleteFunc(declarations(o), func(d controller.Declaration) bool { return !o.runs(d.Name) })
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
	o.requests = controller.NewRequests()
	caches.Forgo(o.Forgone...)
	caches.LimitCapacities(o.CapacityHome.Namespace)
	var all []lifecycle.Part
	for _, m := range members(o) {
		if !o.runs(m.Name) {
			continue
		}
		client, err := clientFor(o, m.Name, m.Rights(), flow)
		if err != nil {
			return err
		}
		pace := o.pace(m.Name)
		c := m.build(controller.Env{
			Client: client, Caches: caches, Pace: ownPace(pace),
			Events: kube.NewRecorder(ctx, client, m.Name), Log: o.Log.With("controller", m.Name),
		})
		measure(o.Metrics, m.Name, c)
		all = append(all, lifecycle.Part{
			Name: m.Name, Run: whenRead(m.Declaration, caches, o.Log, limited(c.Run, pace.Timeout)),
		})
	}
	fill := func() {}
	if o.World != nil {
		fill = o.World.Follow(caches, gather.Options{Bridge: flex.Translation(), Moves: migrate.Unfinished})
	}
	o.measureObjects(caches)
	o.Plane.lend(caches)
	read := lifecycle.NewWait(o.Log, "waiting for the API server")
	read.For("the objects that the controllers need have not all been read")
	err = caches.Start(ctx)
	if err != nil {
		read.Stop()
		return lifecycle.UnlessEnded(ctx, err)
	}
	read.Over()
	fill()
	if o.Drivers != nil {
		go o.Drivers.Follow(ctx)
	}
	ready()
	return lifecycle.Run(ctx, o.Log, all)
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
		o.World.Measure(o.Metrics, caches, o.Log)
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
		installed := lifecycle.NewWait(log.With("controller", d.Name), "waiting for custom resources")
		defer installed.Stop()
		installed.For("the API server does not have those that the controller reads")
		if err := caches.WaitForOptional(ctx, d.Inputs); err != nil {
			return lifecycle.UnlessEnded(ctx, err)
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

// Plane is what the parts of one process share that is a whole control plane: each object is in memory once, and
// claims and volumes are read from the API server once. A nil Plane shares nothing.
type Plane struct {
	trimmer *kube.Trimmer
	// caches are those of the controllers once lent is closed.
	caches *kube.Caches
	lent   chan struct{}
	// blocks is what ChangedBlocks serves.
	blocks *snapshotmetadata.Embedded
}

// NewPlane returns a Plane whose controllers will lend their caches.
func NewPlane() *Plane {
	return &Plane{
		trimmer: kube.NewTrimmer(flex.Translation()), lent: make(chan struct{}), blocks: snapshotmetadata.NewEmbedded(),
	}
}

// Services returns what the API server serves to clients about whom it knows nothing, by how the paths begin.
func (p *Plane) Services() map[string]http.Handler {
	return map[string]http.Handler{snapshotmetadata.Path: p.blocks}
}

// Transform prepares the objects of the API server's own caches.
func (p *Plane) Transform(o any) (any, error) { return p.trimmer.Whole(o) }

func (p *Plane) share(caches *kube.Caches) {
	if p != nil {
		caches.Share(p.trimmer)
	}
}

func (p *Plane) borrow(caches *kube.Caches) {
	if p != nil {
		caches.Borrow(p.caches)
	}
}

// lend lends caches that are about to start.
func (p *Plane) lend(caches *kube.Caches) {
	if p != nil {
		p.caches = caches.Lendable()
		close(p.lent)
	}
}

// ControlPlaneOptions configure the controllers of a process.
type ControlPlaneOptions struct {
	// ConfigFor returns the client configuration of ReaderRole or of a role in Declarations.
	ConfigFor func(role string) (*rest.Config, error)
	// Roles are the names of the controllers to run; empty means all but those that run on demand.
	Roles []string
	// Drivers are the CSI drivers that this process reaches; nil if none of the controllers calls any.
	Drivers *csi.Set
	// Sidecars are what the user has chosen for the controllers of a driver.
	Sidecars
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
	// Metrics counts what the controllers do, or is nil.
	Metrics *observe.Registry
	// World, unless it is nil, is filled with what the process knows of the cluster, and Metrics shows what waits in it,
	// and why.
	World *world.World
	// Plane is what the controllers share with other parts of the process; nil if they are alone.
	Plane *Plane
	// Log is the log of the program.
	Log *slog.Logger

	// requests are what the binder asks of the provisioner.
	requests *controller.Requests
}

// runs says whether a controller is to run.
func (o ControlPlaneOptions) runs(role string) bool {
	if role == groupsnapshotter.BindingDeclaration().Name && o.SnapshotController.WithoutGroups {
		return false
	}
	return len(o.Roles) == 0 && !onDemand(role) || runs(o.Roles, role)
}

// near returns what says of a driver whether this process attaches its volumes; nil if it attaches none.
func (o ControlPlaneOptions) near() func(driver string) bool {
	if !o.runs(attacher.Declaration().Name) {
		return nil
	}
	return func(driver string) bool {
		d, ok := o.Drivers.Get(driver)
		return ok && d.Controller.PublishUnpublish
	}
}
