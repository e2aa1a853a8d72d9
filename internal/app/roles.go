package app

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"

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
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/volume"
)

// ReaderRole is the role whose identity fills the shared caches.
const ReaderRole = "reader"

// LeasesRole is the role whose identity holds the leases of drivers in a standalone control plane.
const LeasesRole = "leases"

// nodesGroup is the group of all node agents' identities.
const nodesGroup = "system:nodes"

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

// User returns the user name of a role of the control plane in the API.
func User(role string) string { return "system:volplane:" + role }

// RBAC returns the roles and bindings that give each controller, the shared
// caches and the node agents exactly what they declare.
func RBAC() []runtime.Object {
	var out []runtime.Object
	for _, d := range Declarations() {
		if onDemand(d.Name) {
			continue
		}
		out = append(out, kube.Roles(User(d.Name), d.Rights(), kube.User(User(d.Name)))...)
	}
	out = append(out, kube.Roles(User(ReaderRole), inputs(Declarations()), kube.User(User(ReaderRole)))...)
	out = append(out, kube.Roles(User(LeasesRole), leadRights(), kube.User(User(LeasesRole)))...)
	out = append(out, kube.Roles(User("host"), hostRights(), kube.Group(identity.HostsGroup))...)
	// The Node authorizer grants each agent the rights on its own objects; these are
	// the others.
	return append(out, kube.Roles(User("node"), node.Rights(), kube.Group(nodesGroup))...)
}

// inputs returns the rights that filling the caches of these controllers needs.
func inputs(all []controller.Declaration) []kube.Access {
	var out []kube.Access
	for _, d := range all {
		out = append(out, d.Inputs...)
	}
	return out
}

// DriverControllerRights returns the rights that a process of Controllers needs: those
// that the controllers declare, the one to look for others, and, with leader election,
// those on the leases of the driver. Leases and intents are in the namespace. If each node has such a process, the
// names of these are not known, and the rights are those on every Lease of the namespace.
func DriverControllerRights(roles []string, driver, namespace string, elects, onNodes bool) []kube.Access {
	var out []kube.Access
	intents, leases := driverIntents(driver, "", namespace), leaseNames(roles, driver)
	if onNodes {
		intents.AnyName, leases = true, nil
	}
	for _, d := range declarations(intents) {
		if runs(roles, d.Name) {
			out = append(out, d.Rights()...)
		}
	}
	out = append(out, besideRight())
	if !elects {
		return out
	}
	return append(out, leaseRights(namespace, leases)...)
}
