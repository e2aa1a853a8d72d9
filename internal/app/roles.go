package app

import (
	"slices"
	"time"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/binder"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/ephemeral"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/modifier"
	"volplane.dev/volplane/internal/controller/nodelife"
	"volplane.dev/volplane/internal/controller/placement"
	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// The roles of a standalone control plane beside its controllers.
const (
	// ReaderRole is the role whose identity fills the shared caches.
	ReaderRole = "reader"
	// LeasesRole is the role whose identity holds the leases of drivers.
	LeasesRole = "leases"
)

// driverRole is a controller that can run for one driver in a cluster. The others manage objects of a whole cluster.
type driverRole struct {
	name string
	// lease returns the name of the lease that a CSI sidecar holds for the same work.
	lease func(driver string) string
}

// driverRoles returns the controllers that can run for one driver, in start order.
func driverRoles() []driverRole {
	return []driverRole{
		{provisioner.Declaration().Name, volume.ProvisionerLease}, {capacity.Declaration().Name, volume.ProvisionerLease},
		{attacher.Declaration().Name, volume.AttacherLease},
		{resizer.Declaration().Name, volume.ResizerLease}, {modifier.Declaration().Name, volume.ResizerLease},
		{snapshotter.Declaration().Name, volume.SnapshotterLease},
		{health.Declaration().Name, volume.HealthLease},
		{groupsnapshotter.Declaration().Name, volume.SnapshotterLease},
	}
}

// DriverControllers returns the names of the controllers that can run for one driver in a cluster, in start order.
func DriverControllers() []string {
	var out []string
	for _, r := range driverRoles() {
		out = append(out, r.name)
	}
	return out
}

// ClusterControllers returns the names of the controllers that can run in a cluster of Kubernetes: those for one
// driver, and the snapshot-controller, which Kubernetes does not have. The latter is two: the one for groups of
// snapshots has no name of its own, as in upstream's program.
func ClusterControllers() []string {
	return append(DriverControllers(), snapshotter.BindingDeclaration().Name)
}

// leaseNames returns the names of the leases for controllers of one driver. Their order is always the same, so that
// processes that acquire several cannot deadlock.
func leaseNames(roles []string, driver string) []string {
	var out []string
	for _, r := range driverRoles() {
		if name := r.lease(driver); slices.Contains(roles, r.name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if slices.Contains(roles, snapshotter.BindingDeclaration().Name) {
		out = append(out, volume.SnapshotControllerLease)
	}
	return out
}

// runs says whether a controller is one of those with these names.
func runs(roles []string, name string) bool {
	if name == groupsnapshotter.BindingDeclaration().Name {
		name = snapshotter.BindingDeclaration().Name
	}
	return slices.Contains(roles, name)
}

// onDemand says whether a controller runs only where its name is given. A control plane of volplane says by Nodes and
// by explanations what the watcher of nodes says by events.
func onDemand(role string) bool { return role == health.WatcherDeclaration().Name }

// member is one controller of the control plane: its declaration and constructor.
type member struct {
	controller.Declaration
	build func(controller.Env, shared) *controller.Controller
}

// shared are the options of the controllers of a process, besides their Env.
type shared struct {
	drivers *csi.Set
	// scope is that of the volumes for which drivers are called.
	scope    volume.Scope
	requests *controller.Requests
	sidecars Sidecars
	// protects says that the protection controller runs, and attaches that the attacher runs.
	protects     bool
	attaches     bool
	attachDetach attachdetach.Options
	attacher     attacher.Options
	capacity     capacity.Options
	health       health.Options
	// selects says that the nodes of claims are selected by volplane.
	selects bool
	// meter counts the provisioner's attempts, or is nil.
	meter provisioner.Meter
}

// members lists the controllers in start order, with a provisioner that stores its
// intents in the given logs. Only this function knows all controllers.
func members(intents provisioner.Logs) []member {
	return []member{
		{protection.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return protection.New(e) }},
		{binder.Declaration(), func(e controller.Env, s shared) *controller.Controller { return binder.New(e, s.requests) }},
		{provisioner.DeclarationWith(intents), func(e controller.Env, s shared) *controller.Controller {
			return provisioner.New(e, provisioner.Options{
				Drivers: s.drivers, Scope: s.scope, Requests: s.requests, Protects: s.protects, Attaches: s.attaches,
				Intents: intents,
				Choices: s.sidecars.choices(), WithoutTopology: s.sidecars.Provisioner.WithoutTopology,
				Contest: s.sidecars.contest(), Identity: s.sidecars.Identity, Selects: s.selects, Meter: s.meter,
			})
		}},
		{capacity.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return capacity.New(e, s.capacity)
		}},
		{ephemeral.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return ephemeral.New(e) }},
		{placement.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return placement.New(e) }},
		{attachdetach.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return attachdetach.New(e, s.attachDetach)
		}},
		{attacher.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return attacher.New(e, s.attacher)
		}},
		{
			nodelife.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return nodelife.New(e, time.Now) },
		},
		{resizer.Declaration(), func(e controller.Env, s shared) *controller.Controller { return resizer.New(e, s.drivers) }},
		{modifier.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return modifier.New(e, s.drivers, s.sidecars.Resizer.ExtraMetadata)
		}},
		{snapshotter.BindingDeclaration(), func(e controller.Env, s shared) *controller.Controller {
			return snapshotter.NewBinding(e, s.sidecars.SnapshotController.Distributed)
		}},
		{snapshotter.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return snapshotter.New(e, s.drivers, s.sidecars.snapshots(s.scope))
		}},
		{health.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return health.New(e, s.drivers, s.health)
		}},
		{health.WatcherDeclaration(), func(e controller.Env, s shared) *controller.Controller {
			return health.NewWatcher(e, s.drivers, time.Now)
		}},
		{groupsnapshotter.BindingDeclaration(), func(e controller.Env, _ shared) *controller.Controller {
			return groupsnapshotter.NewBinding(e)
		}},
		{groupsnapshotter.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return groupsnapshotter.New(e, s.drivers, s.sidecars.groups(s.scope))
		}},
	}
}

// Declarations returns what each controller of the control plane reads and
// writes, in start order.
func Declarations() []controller.Declaration { return declarations(provisioner.Standalone()) }

func declarations(intents provisioner.Logs) []controller.Declaration {
	var out []controller.Declaration
	for _, m := range members(intents) {
		out = append(out, m.Declaration)
	}
	return out
}
