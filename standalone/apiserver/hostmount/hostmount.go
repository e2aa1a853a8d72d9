// Package hostmount is the admission plugin that decides who may have a volume
// mounted at a path of a host. A Pod asks for that with an annotation, and
// whoever may create Pods could otherwise cover any directory of any node.
package hostmount

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
const PluginName = "HostMount"

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

// Validate refuses a Pod whose annotation is new or changed, unless its
// creator may "mount" the "hostpaths" of volplane.dev.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != api.Resource("pods") {
		return nil
	}
	// A Binding carries annotations to its Pod, and a status update may too:
	// every way to a Pod is looked at.
	want := annotation(a.GetObject())
	if want == "" || want == annotation(a.GetOldObject()) {
		return nil
	}
	decision, _, err := p.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "mount", Namespace: a.GetNamespace(),
		APIGroup: volume.Domain, APIVersion: "v1", Resource: "hostpaths", ResourceRequest: true,
	})
	if err != nil || decision != authorizer.DecisionAllow {
		return admission.NewForbidden(a, fmt.Errorf("annotation %s: user %q may not mount at paths of a host: the verb \"mount\" on \"hostpaths\" in group %q is needed",
			volume.AnnMountAt, a.GetUserInfo().GetName(), volume.Domain))
	}
	return nil
}

func annotation(o any) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return m.GetAnnotations()[volume.AnnMountAt]
	}
	return ""
}
