package spare

import (
	"context"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	api "k8s.io/kubernetes/pkg/apis/core"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/decide/identity"
)

// PluginName is the plugin's name in the chain.
const PluginName = "SpareRoom"

// Register adds the plugin to a list. left returns the plan for the remaining room; bulk knows the large objects; own
// says whether a request is the control plane's.
func Register(plugins *admission.Plugins, left func() diskspace.Plan, bulk *Bulk, own func(context.Context) bool) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		handler := admission.NewHandler(admission.Create, admission.Update)
		return &plugin{Handler: handler, left: left, bulk: bulk, own: own}, nil
	})
}

type plugin struct {
	*admission.Handler
	left func() diskspace.Plan
	bulk *Bulk
	own  func(context.Context) bool
}

var _ admission.ValidationInterface = (*plugin)(nil)

// Validate refuses requests that take room which deletions need. The control plane and its nodes may complete what they
// have begun; only their events can wait.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.IsDryRun() || !p.waits(ctx, a) || a.GetOperation() == admission.Create && !stored(a) {
		return nil
	}
	plan := p.left()
	if plan.RefuseNew && (a.GetOperation() == admission.Create || plan.RefuseChanges && !ending(a.GetObject())) {
		return admission.NewForbidden(a, fmt.Errorf("%s: %s", plan.Because.Reason, plan.Because.Message))
	}
	// A status is written by a controller, and describes what exists.
	if a.GetNamespace() == "" || a.GetSubresource() != "" {
		return nil
	}
	if err := p.bulk.refuse(a.GetNamespace(), a.GetOldObject(), a.GetObject()); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// waits says whether a request can wait for room.
func (p *plugin) waits(ctx context.Context, a admission.Attributes) bool {
	return a.GetResource().Resource == "events" || !p.own(ctx) && !ours(a.GetUserInfo())
}

// ours recognizes the server's own client, and the agents and controllers of other nodes.
func ours(u user.Info) bool {
	return u != nil && (u.GetName() == user.APIServerUser || slices.Contains(u.GetGroups(), user.NodesGroup) ||
		slices.Contains(u.GetGroups(), identity.HostsGroup))
}

// stored says whether a new object would be stored: reviews are only answered, and tokens and bindings belong to
// existing objects.
func stored(a admission.Attributes) bool {
	switch a.GetResource().Group {
	case "authentication.k8s.io", "authorization.k8s.io":
		return false
	}
	return a.GetSubresource() == "" && a.GetKind().GroupKind() != api.Kind("Binding")
}

// ending says whether an object is being deleted: its finalizers must be removable.
func ending(o any) bool {
	m, ok := o.(metav1.Object)
	return ok && m != nil && m.GetDeletionTimestamp() != nil
}
