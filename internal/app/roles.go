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
	"volplane.dev/volplane/internal/controller/nodelife"
	"volplane.dev/volplane/internal/controller/placement"
	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
)

// ReaderRole is the role whose identity fills the shared caches.
const ReaderRole = "reader"

// nodesGroup is the group of all node agents' identities.
const nodesGroup = "system:nodes"

// member is one controller of the control plane: what it declares, and how it
// is made.
type member struct {
	controller.Declaration
	build func(controller.Env, *csi.Set) *controller.Controller
}

// members lists the controllers in start order. It is the only place that
// knows all of them.
func members() []member {
	return []member{
		{protection.Declaration(), func(e controller.Env, _ *csi.Set) *controller.Controller { return protection.New(e) }},
		{binder.Declaration(), func(e controller.Env, _ *csi.Set) *controller.Controller { return binder.New(e) }},
		{provisioner.Declaration(), func(e controller.Env, d *csi.Set) *controller.Controller { return provisioner.New(e, d) }},
		{placement.Declaration(), func(e controller.Env, _ *csi.Set) *controller.Controller { return placement.New(e) }},
		{attachdetach.Declaration(), func(e controller.Env, _ *csi.Set) *controller.Controller { return attachdetach.New(e, time.Now) }},
		{attacher.Declaration(), func(e controller.Env, d *csi.Set) *controller.Controller { return attacher.New(e, d) }},
		{nodelife.Declaration(), func(e controller.Env, _ *csi.Set) *controller.Controller { return nodelife.New(e, time.Now) }},
		{resizer.Declaration(), func(e controller.Env, d *csi.Set) *controller.Controller { return resizer.New(e, d) }},
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
		inputs = append(inputs, d.Inputs...)
	}
	out = append(out, kube.ClusterRole(User(ReaderRole), inputs), kube.ClusterRoleBinding(User(ReaderRole), User(ReaderRole)))
	return append(out, nodeRole(), nodeBinding())
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
