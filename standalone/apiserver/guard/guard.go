package guard

import (
	"context"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"

	"volplane.dev/volplane/internal/volume"
)

// PluginName is the plugin's name in the chain.
const PluginName = "PodGuard"

// right is a right that the author of a Pod needs in its namespace; an empty name means
// no particular object.
type right struct{ verb, resource, name string }

func (r right) String() string {
	if r.name == "" {
		return fmt.Sprintf("the verb %q on %q in group %q", r.verb, r.resource, volume.Domain)
	}
	return fmt.Sprintf("the verb %q on %q in group %q for the name %q", r.verb, r.resource, volume.Domain, r.name)
}

// Register adds the plugin to a list.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

type plugin struct {
	*admission.Handler
	authz  authorizer.UnconditionalAuthorizer
	client kubernetes.Interface
}

var (
	_ admission.ValidationInterface            = (*plugin)(nil)
	_ initializer.WantsUnconditionalAuthorizer = (*plugin)(nil)
	_ initializer.WantsExternalKubeClientSet   = (*plugin)(nil)
)

// SetUnconditionalAuthorizer sets the authorizer of the plugin.
func (p *plugin) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) { p.authz = a }

// SetExternalKubeClientSet sets the client with which the plugin reads objects.
func (p *plugin) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

// ValidateInitialization returns an error if the plugin has no authorizer or client.
func (p *plugin) ValidateInitialization() error {
	if p.authz == nil || p.client == nil {
		return fmt.Errorf("%s has no authorizer or no client", PluginName)
	}
	return nil
}

// Validate refuses a Pod if the user lacks a right that its fields need. It checks every
// kind of request that can write these fields, whatever their old values.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != api.Resource("pods") {
		return nil
	}
	// A Binding copies its annotations to its Pod, and a status update may change
	// annotations. A Binding has no old object and contains only the changes.
	for _, key := range []string{volume.AnnMountAt, volume.AnnMountOptions} {
		if annotation(a.GetObject(), key) == annotation(a.GetOldObject(), key) {
			continue
		}
		if err := p.demand(ctx, a, "annotation "+key, right{verb: "mount", resource: "hostpaths"}); err != nil {
			return err
		}
	}
	before := inline(a.GetOldObject())
	for _, v := range inline(a.GetObject()) {
		if slices.Contains(before, v) {
			continue
		}
		if err := p.admit(ctx, a, v); err != nil {
			return err
		}
	}
	return nil
}

// demand returns an error if the user does not have the right.
func (p *plugin) demand(ctx context.Context, a admission.Attributes, what string, r right) error {
	decision, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: r.verb, Namespace: a.GetNamespace(), Name: r.name,
		APIGroup: volume.Domain, APIVersion: "v1", Resource: r.resource, ResourceRequest: true,
	})
	if err != nil || decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a,
			fmt.Errorf("%s: user %q may not set or change it: %s is needed", what, a.GetUserInfo().GetName(), r))
	}
	return nil
}

func annotation(o any, key string) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return m.GetAnnotations()[key]
	}
	return ""
}
