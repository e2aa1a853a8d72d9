package hosts

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// PluginName is the plugin's name in the chain.
const PluginName = "HostControllers"

// Register adds the plugin to a list.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{
			Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete, admission.Connect),
		}, nil
	})
}

type plugin struct {
	*admission.Handler
	client kubernetes.Interface
}

var (
	_ admission.ValidationInterface          = (*plugin)(nil)
	_ initializer.WantsExternalKubeClientSet = (*plugin)(nil)
)

// SetExternalKubeClientSet sets the client with which the plugin reads objects.
func (p *plugin) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

// ValidateInitialization returns an error if the plugin has no client.
func (p *plugin) ValidateInitialization() error {
	if p.client == nil {
		return fmt.Errorf("%s has no client", PluginName)
	}
	return nil
}

// Validate refuses a write of a host's controllers that is not about the volumes of their node.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := identity.HostOf(a.GetUserInfo().GetName())
	if !ok {
		return nil
	}
	w := &write{plugin: p, Attributes: a, ctx: ctx, node: node}
	err := w.check()
	if err == nil || apierrors.IsServiceUnavailable(err) {
		return err
	}
	return admission.NewForbidden(a, fmt.Errorf("the controllers of node %s: %w", node, err))
}

// write is one request of the controllers of a node.
type write struct {
	*plugin
	admission.Attributes
	ctx  context.Context
	node string
}

func (w *write) check() error {
	switch r := w.GetResource().GroupResource().String(); r {
	case "persistentvolumes":
		return w.volume()
	case "persistentvolumeclaims":
		return w.claim()
	case "volumeattachments.storage.k8s.io":
		return w.attachment()
	case "csistoragecapacities.storage.k8s.io":
		return w.capacity()
	case "configmaps":
		if w.GetNamespace() == volume.NamespaceSystem && isLog(w.node, w.GetName()) {
			return nil
		}
		return fmt.Errorf("ConfigMap %s/%s is not of their intent log", w.GetNamespace(), w.GetName())
	case "events", "events.events.k8s.io":
		return nil
	default:
		return fmt.Errorf("they may not change %s", r)
	}
}

// isLog says whether a ConfigMap is one of a node's intent log; see kube.LogPlace.
func isLog(node, name string) bool {
	n, ok := strings.CutPrefix(name, identity.HostIntents(node)+"-")
	number, err := strconv.ParseUint(n, 10, 8)
	return ok && err == nil && strconv.FormatUint(number, 10) == n
}

// isNodeLocal returns an error unless each host calls its own instance of a driver.
func (w *write) isNodeLocal(driver string) error {
	d, err := w.client.StorageV1().CSIDrivers().Get(w.ctx, driver, metav1.GetOptions{})
	if err != nil {
		return unread("CSIDriver "+driver, err)
	}
	if !volume.IsNodeLocal(d.Annotations) {
		return fmt.Errorf("driver %s is not node-local: its CSIDriver has no annotation %s=%s", driver, volume.AnnControllers,
			volume.ControllersOnNodes)
	}
	return nil
}

// unread returns the error for an object that could not be read. It is no refusal unless the object does not exist:
// what is refused is deleted at the driver.
func unread(what string, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s does not exist", what)
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("read %s: %v", what, err))
}

// as converts an object of a request to the API's version.
func as[T runtime.Object](from runtime.Object, to T) (T, error) {
	if err := legacyscheme.Scheme.Convert(from, to, nil); err != nil {
		return to, apierrors.NewServiceUnavailable(err.Error())
	}
	return to, nil
}

// pair returns the old and the new object of an update.
func pair[T runtime.Object](w *write, before, after T) (T, T, error) {
	before, err := as(w.GetOldObject(), before)
	if err == nil {
		after, err = as(w.GetObject(), after)
	}
	return before, after, err
}

// bare returns an object's metadata without what an update may change: the server's own fields, and the given
// finalizers and annotations.
func bare(m *metav1.ObjectMeta, finalizers, annotations []string) {
	m.ManagedFields, m.ResourceVersion, m.Generation = nil, "", 0
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds = nil, nil
	var left []string
	for _, f := range m.Finalizers {
		if !slices.Contains(finalizers, f) {
			left = append(left, f)
		}
	}
	m.Finalizers = left
	for _, a := range annotations {
		delete(m.Annotations, a)
	}
	if len(m.Annotations) == 0 {
		m.Annotations = nil
	}
}

// madeHere returns an error unless a volume was made on the node, by a driver that is node-local.
func (w *write) madeHere(v *corev1.PersistentVolume) error {
	if on := provision.MadeOn(v); on != w.node {
		return fmt.Errorf("volume %s was not made on the node (annotation %s=%q)", v.Name, volume.AnnProvisionedOn, on)
	}
	if v.Spec.CSI == nil {
		return fmt.Errorf("volume %s is no CSI volume", v.Name)
	}
	return w.isNodeLocal(v.Spec.CSI.Driver)
}
