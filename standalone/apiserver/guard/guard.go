// Package guard is the admission plugin that decides who may set the
// annotations that volplane acts upon with more rights than their writer has. A
// Pod asks with one to be mounted at a path of the host: whoever may create
// Pods could otherwise cover any directory of any node. The provisioner keeps
// in another one what it calls drivers with: whoever may write claims could
// otherwise have drivers called with other tenants' volumes and secrets.
package guard

import (
	"context"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	api "k8s.io/kubernetes/pkg/apis/core"

	"volplane.dev/volplane/internal/volume"
)

// PluginName is the plugin's name in the chain.
const PluginName = "AnnotationGuard"

// Register adds the plugin to a list.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

type plugin struct {
	*admission.Handler
	authz authorizer.UnconditionalAuthorizer
}

var (
	_ admission.ValidationInterface            = (*plugin)(nil)
	_ initializer.WantsUnconditionalAuthorizer = (*plugin)(nil)
)

// SetUnconditionalAuthorizer gives the plugin whom to ask.
func (p *plugin) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) { p.authz = a }

// ValidateInitialization refuses a plugin that could not ask anybody.
func (p *plugin) ValidateInitialization() error {
	if p.authz == nil {
		return fmt.Errorf("%s has no authorizer", PluginName)
	}
	return nil
}

// rule is one annotation and what its writer must be allowed to do in
// volplane.dev.
type rule struct{ kind, annotation, verb, resource string }

func rules() []rule {
	return []rule{
		{"pods", volume.AnnMountAt, "mount", "hostpaths"},
		{"persistentvolumeclaims", volume.AnnIntent, "write", volume.ResourceIntents},
	}
}

// Validate refuses an object whose guarded annotation is new, changed or taken
// away, unless its writer is allowed to.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	for _, r := range rules() {
		if a.GetResource().GroupResource() != api.Resource(r.kind) {
			continue
		}
		// A Binding carries annotations to its Pod, and a status update may
		// too: every way to the object is looked at. A Binding has no old
		// object and says nothing of what it does not change.
		want, had := annotation(a.GetObject(), r.annotation), annotation(a.GetOldObject(), r.annotation)
		if want == had {
			continue
		}
		if err := p.ask(ctx, a, r); err != nil {
			return err
		}
	}
	return nil
}

func (p *plugin) ask(ctx context.Context, a admission.Attributes, r rule) error {
	decision, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: r.verb, Namespace: a.GetNamespace(),
		APIGroup: volume.Domain, APIVersion: "v1", Resource: r.resource, ResourceRequest: true,
	})
	if err != nil || decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a, fmt.Errorf("annotation %s: user %q may not set or change it: the verb %q on %q in group %q is needed",
			r.annotation, a.GetUserInfo().GetName(), r.verb, r.resource, volume.Domain))
	}
	return nil
}

func annotation(o any, key string) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return m.GetAnnotations()[key]
	}
	return ""
}
