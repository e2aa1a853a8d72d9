package guard

import (
	"context"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	api "k8s.io/kubernetes/pkg/apis/core"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

// PluginName is the plugin's name in the chain.
const PluginName = "PodGuard"

// right is a right that the author of a Pod needs in its namespace; an empty name means no particular object.
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

// named is the driver of an inline volume of a Pod, as a FlexVolume or CSI driver.
type named struct{ flex, csi string }

// inline returns the drivers of the inline volumes of a Pod; none for objects of other kinds.
func inline(o any) []named {
	pod, ok := o.(*api.Pod)
	if !ok || pod == nil {
		return nil
	}
	var all []named
	for _, v := range pod.Spec.Volumes {
		if v.FlexVolume != nil {
			all = append(all, named{flex: v.FlexVolume.Driver})
		}
		if v.CSI != nil {
			all = append(all, named{csi: v.CSI.Driver})
		}
	}
	return all
}

// admit refuses a FlexVolume driver if the user may not use it.
func (p *plugin) admit(ctx context.Context, a admission.Attributes, v named) error {
	if v.csi == "" {
		return p.demand(ctx, a, "flexVolume "+v.flex, use(v.flex))
	}
	name, err := p.flexOf(ctx, v.csi)
	if err != nil || name == "" {
		return err
	}
	return p.demand(ctx, a, fmt.Sprintf("csi volume of driver %s, which is or may be FlexVolume driver %s: no CSIDriver "+
		"object of another program says otherwise", v.csi, name), use(name))
}

// use returns the right to use a driver in inline volumes.
func use(driver string) right { return right{verb: "use", resource: "flexdrivers", name: driver} }

// flexOf returns the FlexVolume driver that has the name of a CSI driver, or could be installed with it. It returns ""
// if another program than volplane created the CSIDriver, whose volumeLifecycleModes then say whether Pods may use the
// driver, as in every cluster. A CSIDriver that volplane created for a FlexVolume driver does not express such a
// permission.
func (p *plugin) flexOf(ctx context.Context, csi string) (string, error) {
	n, err := decide.ParseCSI(csi)
	if err != nil {
		return "", nil //nolint:nilerr // the name of no FlexVolume driver
	}
	d, err := p.client.StorageV1().CSIDrivers().Get(ctx, csi, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return "", apierrors.NewInternalError(fmt.Errorf("get CSIDriver %s: %w", csi, err))
	case d.Labels[volume.LabelMadeBy] != volume.Program:
		return "", nil
	}
	return n.String(), nil
}
