// Package guard has two admission plugins of volplane's own. One decides who may
// set the annotation with which a Pod asks to be mounted at a path of the host:
// whoever may create Pods could otherwise cover any directory of any node. The
// other refuses what would give a user other data than asked for.
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

// What a writer of the annotation must be allowed to do.
const verb, resource = "mount", "hostpaths"

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

// Validate refuses a Pod whose guarded annotation is new, changed or taken
// away, unless its writer may "mount" "hostpaths" in volplane.dev.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != api.Resource("pods") {
		return nil
	}
	// A Binding carries annotations to its Pod, and a status update may too:
	// every way to the object is looked at. A Binding has no old object and
	// says nothing of what it does not change.
	if annotation(a.GetObject(), volume.AnnMountAt) == annotation(a.GetOldObject(), volume.AnnMountAt) {
		return nil
	}
	decision, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(),
		APIGroup: volume.Domain, APIVersion: "v1", Resource: resource, ResourceRequest: true,
	})
	if err != nil || decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a, fmt.Errorf("annotation %s: user %q may not set or change it: the verb %q on %q in group %q is needed",
			volume.AnnMountAt, a.GetUserInfo().GetName(), verb, resource, volume.Domain))
	}
	return nil
}

func annotation(o any, key string) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return m.GetAnnotations()[key]
	}
	return ""
}
