// Package account is the admission plugin that sets the default service account of Pods without one, because tokens are
// issued for Pods of an account. It adds no volume with a token, because Pods run no containers here.
package account

import (
	"context"
	"io"

	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// PluginName is the plugin's name in the chain.
const PluginName = "DefaultServiceAccount"

// Default is the account's name.
const Default = "default"

// Register adds the plugin to a list.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create)}, nil
	})
}

type plugin struct{ *admission.Handler }

var _ admission.MutationInterface = (*plugin)(nil)

// Admit sets the account of a new Pod without one.
func (p *plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != api.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	if pod, ok := a.GetObject().(*api.Pod); ok && pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = Default
		pod.Spec.DeprecatedServiceAccount = Default //nolint:staticcheck // validation wants both fields to be the same
	}
	return nil
}
