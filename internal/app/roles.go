package app

import (
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/binder"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/ephemeral"
	"volplane.dev/volplane/internal/controller/nodelife"
	"volplane.dev/volplane/internal/controller/placement"
	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/volume"
)

// ReaderRole is the role whose identity fills the shared caches.
const ReaderRole = "reader"

// nodesGroup is the group of all node agents' identities.
const nodesGroup = "system:nodes"

// member is one controller of the control plane: what it declares, and how it
// is made.
type member struct {
	controller.Declaration
	build func(controller.Env, shared) *controller.Controller
}

// shared is what controllers of a process have in common beside their Env.
type shared struct {
	drivers  *csi.Set
	requests *controller.Requests
	// protects says that protection runs.
	protects bool
	// near says for which drivers the attacher runs and calls them.
	near     func(driver string) bool
	attacher attacher.Options
	capacity capacity.Options
}

// members lists the controllers in start order. It is the only place that
// knows all of them.
func members() []member {
	return []member{
		{protection.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return protection.New(e) }},
		{binder.Declaration(), func(e controller.Env, s shared) *controller.Controller { return binder.New(e, s.requests) }},
		{provisioner.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return provisioner.New(e, provisioner.Options{Drivers: s.drivers, Requests: s.requests, Protects: s.protects})
		}},
		{capacity.Declaration(), func(e controller.Env, s shared) *controller.Controller { return capacity.New(e, s.capacity) }},
		{ephemeral.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return ephemeral.New(e) }},
		{placement.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return placement.New(e) }},
		{attachdetach.Declaration(), func(e controller.Env, s shared) *controller.Controller {
			return attachdetach.New(e, attachdetach.Options{Now: time.Now, Near: s.near})
		}},
		{attacher.Declaration(), func(e controller.Env, s shared) *controller.Controller { return attacher.New(e, s.attacher) }},
		{nodelife.Declaration(), func(e controller.Env, _ shared) *controller.Controller { return nodelife.New(e, time.Now) }},
		{resizer.Declaration(), func(e controller.Env, s shared) *controller.Controller { return resizer.New(e, s.drivers) }},
	}
}

// Declarations returns what each controller of the control plane reads and
// writes, in start order.
func Declarations() []controller.Declaration {
	var out []controller.Declaration
	for _, m := range members() {
		out = append(out, m.Declaration)
	}
	return out
}

// User returns the user name that a role of the control plane has towards the
// API server.
func User(role string) string { return "system:volplane:" + role }

// RBAC returns the roles and bindings that give each controller, the shared
// caches and the node agents exactly what they declare.
func RBAC() []runtime.Object {
	var out []runtime.Object
	var inputs []kube.Access
	for _, d := range Declarations() {
		out = append(out, kube.ClusterRole(User(d.Name), d.Rights()), kube.ClusterRoleBinding(User(d.Name), User(d.Name)))
		out = append(out, ownRoles(d)...)
		inputs = append(inputs, d.Inputs...)
	}
	out = append(out, kube.ClusterRole(User(ReaderRole), inputs), kube.ClusterRoleBinding(User(ReaderRole), User(ReaderRole)))
	return append(out, nodeRole(), nodeBinding())
}

// ownRoles returns the role and its binding for what a controller keeps in the
// namespace of components, if it keeps anything.
func ownRoles(d controller.Declaration) []runtime.Object {
	role := kube.Role(volume.NamespaceSystem, User(d.Name), d.Rights())
	if len(role.Rules) == 0 {
		return nil
	}
	return []runtime.Object{role, kube.RoleBinding(volume.NamespaceSystem, User(d.Name), User(d.Name))}
}

// nodeRole is what node agents may do beyond what the Node authorizer grants
// each of them for its own objects.
func nodeRole() *rbacv1.ClusterRole { return kube.ClusterRole(User("node"), node.Rights()) }

func nodeBinding() *rbacv1.ClusterRoleBinding {
	b := kube.ClusterRoleBinding(User("node"), "")
	b.ObjectMeta = metav1.ObjectMeta{Name: User("node")}
	b.Subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: nodesGroup}}
	return b
}
