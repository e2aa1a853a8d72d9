package app

import (
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
)

// member is one controller of the control plane: its declaration and constructor.
type member struct {
	controller.Declaration
	build func(controller.Env) *controller.Controller
}

// members lists the controllers in start order, to run or not. Only this function knows all of them.
func members(o ControlPlaneOptions) []member {
	return []member{
		{protection.Declaration(), protection.New},
		{binder.Declaration(), func(e controller.Env) *controller.Controller { return binder.New(e, o.requests) }},
		{o.provisions(), func(e controller.Env) *controller.Controller {
			return provisioner.New(e, provisioner.Options{
				Drivers: o.Drivers, Scope: o.Scope, Requests: o.requests, Protects: o.runs(protection.Declaration().Name),
				// What a host may create is checked, and an older API server does not expect this finalizer there.
				Attaches: o.runs(attacher.Declaration().Name) && o.Scope.Node == "",
				Intents:  o.Intents, Choices: o.choices(), WithoutTopology: o.Provisioner.WithoutTopology, Contest: o.contest(),
				// Provisioners beside a driver in a cluster have an identity; elsewhere volplane selects the nodes of claims.
				Identity: o.Identity, Selects: o.Identity == "", Meter: provisionMeter(o.Metrics),
			})
		}},
		{capacity.Declaration(), func(e controller.Env) *controller.Controller {
			return capacity.New(e, capacity.Options{
				Drivers: o.Drivers, Immediate: o.CapacityForImmediate, Poll: o.CapacityPoll, Home: o.CapacityHome,
				Count: countCapacities(o.Metrics),
			})
		}},
		{ephemeral.Declaration(), ephemeral.New},
		{placement.Declaration(), placement.New},
		{attachdetach.Declaration(), func(e controller.Env) *controller.Controller {
			return attachdetach.New(e, attachdetach.Options{
				Now: time.Now, DisableForceDetachOnTimeout: o.DisableForceDetachOnTimeout, MaxUnmount: o.MaxUnmount,
				Near: o.near(),
			})
		}},
		{attacher.Declaration(), func(e controller.Env) *controller.Controller {
			return attacher.New(e, attacher.Options{
				Drivers: o.Drivers, Scope: o.Scope, ReconcileSync: o.ReconcileSync, Dummy: o.DummyAttacher,
				MaxEntries: o.Attacher.MaxEntries, DefaultFSType: o.Attacher.DefaultFSType,
			})
		}},
		{nodelife.Declaration(), func(e controller.Env) *controller.Controller {
			return nodelife.New(e, time.Now)
		}},
		{resizer.Declaration(), func(e controller.Env) *controller.Controller { return resizer.New(e, o.Drivers) }},
		{modifier.Declaration(), func(e controller.Env) *controller.Controller {
			return modifier.New(e, o.Drivers, o.Resizer.ExtraMetadata)
		}},
		{snapshotter.BindingDeclaration(), func(e controller.Env) *controller.Controller {
			return snapshotter.NewBinding(e, o.SnapshotController.Distributed)
		}},
		{snapshotter.Declaration(), func(e controller.Env) *controller.Controller {
			return snapshotter.New(e, o.Drivers, o.snapshots(o.Scope))
		}},
		{health.Declaration(), func(e controller.Env) *controller.Controller {
			return health.New(e, o.Drivers, o.health())
		}},
		{health.WatcherDeclaration(), func(e controller.Env) *controller.Controller {
			return health.NewWatcher(e, o.Drivers, time.Now)
		}},
		{groupsnapshotter.BindingDeclaration(), groupsnapshotter.NewBinding},
		{groupsnapshotter.Declaration(), func(e controller.Env) *controller.Controller {
			return groupsnapshotter.New(e, o.Drivers, o.groups(o.Scope))
		}},
	}
}

// provisions returns what the provisioner reads and writes.
func (o ControlPlaneOptions) provisions() controller.Declaration {
	return provisioner.DeclarationWith(provisioner.Options{Intents: o.Intents, Choices: o.choices()})
}

// Declarations returns what each controller of the control plane reads and
// writes, in start order.
func Declarations() []controller.Declaration {
	return declarations(ControlPlaneOptions{Intents: provisioner.Standalone()})
}

func declarations(o ControlPlaneOptions) []controller.Declaration {
	var out []controller.Declaration
	for _, m := range members(o) {
		out = append(out, m.Declaration)
	}
	return out
}
