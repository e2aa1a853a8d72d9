package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/lease"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar/snapshotmetadata"
	"volplane.dev/volplane/internal/volume"
)

// dispensable returns the resources that a controller reads for some drivers, and does not need for this one.
// Upstream's sidecar does not read them for such a driver, so the role that the driver's vendor wrote for it may lack
// the right.
func dispensable(role string, d *csi.Driver, onNode bool) []kube.Access {
	var out []kube.Access
	places := append(kube.Read("", "nodes"), kube.Read("storage.k8s.io", "csinodes")...)
	switch role {
	case capacity.Declaration().Name:
		if onNode {
			out = places
		}
	case attacher.Declaration().Name:
		out = append(kube.Read("", "nodes"), kube.Read("storage.k8s.io", "csidrivers")...)
	case provisioner.Declaration().Name:
		if onNode || !d.Plugin.AccessibilityConstraints {
			out = places
		}
		if !d.Controller.PublishUnpublish {
			out = append(out, kube.Read("storage.k8s.io", "volumeattachments")...)
		}
	}
	return out
}

// allDispensable returns the resources that no controller of the process needs for this driver, though some read them.
func allDispensable(roles []string, d *csi.Driver, onNode bool) []kube.Access {
	var out []kube.Access
	needed := map[string]bool{}
	for _, c := range Declarations() {
		if !runs(roles, c.Name) {
			continue
		}
		without := dispensable(c.Name, d, onNode)
		for _, in := range c.Inputs {
			if slices.ContainsFunc(without, func(a kube.Access) bool { return a.Resource == in.Resource }) {
				out = append(out, in)
			} else {
				needed[in.Resource] = true
			}
		}
	}
	return slices.DeleteFunc(out, func(a kube.Access) bool { return needed[a.Resource] })
}

// unused returns the resources at which no controller beside this driver looks, though it may read them: whether
// volumes need attaching is asked only to compare what is attached with the list of a driver that has one.
func unused(d *csi.Driver) []string {
	if d.Controller.ListVolumes && d.Controller.ListVolumesPublishedNodes {
		return nil
	}
	return []string{"csidrivers"}
}

// forgone returns the resources that the process does without beside a driver: those at which no controller looks, and
// those that none needs and that it may not read. On each node, these are also those of all nodes, even if they may be
// read: each node's heartbeats would be sent to all others. Without a driver it needs all that it may read.
func forgone(ctx context.Context, o options.ControllersOptions, d *csi.Driver) ([]string, error) {
	if d == nil {
		return nil, nil
	}
	onNode := o.Provisioner.OnNode.Node != ""
	reads, out := allDispensable(o.Roles, d, onNode), unused(d)
	if len(reads) == 0 {
		return out, nil
	}
	client, err := rightsClient(o.Config)
	if err != nil {
		return nil, err
	}
	for _, a := range reads {
		if slices.Contains(out, a.Resource) {
			continue
		}
		may := false
		if ofNodes := a.Resource == "nodes" || a.Resource == "csinodes"; !onNode || !ofNodes {
			if may, err = mayRead(ctx, client, a, o.Log); err != nil {
				return nil, err
			}
		}
		if !may {
			out = append(out, a.Resource)
		}
	}
	return out, nil
}

// mayRead asks until the API server answers.
func mayRead(ctx context.Context, client kubernetes.Interface, a kube.Access, log *slog.Logger) (may bool, err error) {
	pauses := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Steps: 30, Cap: 10 * time.Second}
	err = pauses.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		for _, verb := range []string{"list", "watch"} {
			review, err := reviewAccess(ctx, client,
				authorizationv1.ResourceAttributes{Verb: verb, Group: a.Group, Resource: a.Resource})
			if err != nil {
				log.Warn("the API server does not answer what this process may read; will be retried", "err", err)
				return false, nil
			}
			if may = review.Allowed; !may {
				break
			}
		}
		return true, nil
	})
	return may, err
}

// rightsClient returns a client that asks what this process may do, and may do more.
func rightsClient(config *rest.Config, more ...kube.Access) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(kube.Restrict(config, "rights",
		append(more, kube.Write("authorization.k8s.io", "selfsubjectaccessreviews", "create"))))
	if err != nil {
		return nil, fmt.Errorf("client of the rights: %w", err)
	}
	return client, nil
}

// reviewAccess asks the API server whether this process may do something.
func reviewAccess(
	ctx context.Context, client kubernetes.Interface, what authorizationv1.ResourceAttributes,
) (authorizationv1.SubjectAccessReviewStatus, error) {
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what},
		}, metav1.CreateOptions{})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	return review.Status, nil
}

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
	out = append(out, kube.Roles(User(MetadataRole), metadataRights(), kube.User(User(MetadataRole)))...)
	out = append(out, kube.Roles(User("host"), hostRights(), kube.Group(identity.HostsGroup))...)
	// The Node authorizer grants each agent the rights on its own objects; these are the others.
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

// DriverControllerRights returns the rights that a process of Controllers needs: those that the controllers declare,
// the one to look for others, and, with leader election, those on the leases of the driver. MetadataRole among them
// stands for a process beside it that serves changed blocks. Leases and intents are in the namespace. If each node has
// such a process, the names of these are not known, and the rights are those on every Lease of the namespace.
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
	if slices.Contains(roles, MetadataRole) {
		out = append(out, snapshotmetadata.Rights()...)
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
