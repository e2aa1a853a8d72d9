package app

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/lease"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/volume"
)

// nodesGroup is the group of all node agents' identities.
const nodesGroup = "system:nodes"

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
	out = append(out, kube.Roles(User(LeasesRole), leasesRights(), kube.User(User(LeasesRole)))...)
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
	for _, d := range declarations(ControlPlaneOptions{Intents: intents}) {
		if runs(roles, d.Name) {
			out = append(out, d.Rights()...)
		}
	}
	out = append(out, lease.OthersRight())
	if !elects {
		return out
	}
	return append(out, lease.Rights(namespace, leases)...)
}

// leasesRights returns the rights of LeasesRole.
func leasesRights() []kube.Access {
	return slices.Concat(driverLeaseRights(), kube.Read("", "nodes"), publishRights())
}

// driverLeaseRights returns the rights that holding the leases of drivers needs.
func driverLeaseRights() []kube.Access {
	return append(lease.Rights(volume.NamespaceSystem, nil), kube.Read("storage.k8s.io", "csidrivers")...)
}

// publishRights returns the rights that publishing needs.
func publishRights() []kube.Access {
	create := kube.Write("", "configmaps", "create")
	create.Namespace = metav1.NamespacePublic
	write := kube.Write("", "configmaps", "get", "update")
	write.Namespace, write.Names = metav1.NamespacePublic, []string{volume.ConfigPlanes}
	return []kube.Access{create, write}
}

// hostRights returns the rights of the controllers of all hosts. The API server restricts each of them to the volumes
// of its own node and to the drivers that are delegated to it, grants it their intent logs, and lets it read no Secrets
// beyond those that RBAC gives it.
func hostRights() []kube.Access {
	out := lease.Rights(volume.NamespaceSystem, nil)
	for _, d := range Declarations() {
		if slices.Contains(DriverControllers(), d.Name) {
			out = append(out, slices.DeleteFunc(d.Rights(), func(a kube.Access) bool {
				return a.Resource == "secrets" || a.Resource == "configmaps"
			})...)
		}
	}
	return out
}
