package hosts

import (
	"context"
	"errors"
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
	"k8s.io/client-go/informers"
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
	client  kubernetes.Interface
	drivers drivers
	handles handles
}

var (
	_ admission.ValidationInterface                = (*plugin)(nil)
	_ initializer.WantsExternalKubeClientSet       = (*plugin)(nil)
	_ initializer.WantsExternalKubeInformerFactory = (*plugin)(nil)
)

// SetExternalKubeClientSet sets the client with which the plugin reads objects.
func (p *plugin) SetExternalKubeClientSet(c kubernetes.Interface) { p.client = c }

// SetExternalKubeInformerFactory sets the informers that show the plugin drivers and volumes.
func (p *plugin) SetExternalKubeInformerFactory(inf informers.SharedInformerFactory) {
	p.drivers, p.handles = driversOf(inf), handlesOf(inf)
}

// ValidateInitialization returns an error if the plugin has no client or no informers.
func (p *plugin) ValidateInitialization() error {
	if p.client == nil || p.drivers.synced == nil {
		return fmt.Errorf("%s has no client or no informers", PluginName)
	}
	return p.handles.err
}

// Validate refuses a write of a host's controllers that is neither about the volumes of their node nor about a driver
// that is delegated to it, and a write of a node that moves it into the segment of another.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	var err error
	user := a.GetUserInfo().GetName()
	if node, ok := identity.HostOf(user); ok {
		w := &write{plugin: p, Attributes: a, ctx: ctx, node: node}
		if err = w.check(); err != nil {
			err = fmt.Errorf("the controllers of node %s: %w", node, err)
		}
	} else if node, ok := strings.CutPrefix(user, identity.UserPrefix); ok {
		w := &write{plugin: p, Attributes: a, ctx: ctx, node: node}
		err = w.place()
	}
	var other *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &other):
		return other
	}
	return admission.NewForbidden(a, err)
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
	case volume.ResourceSnapshots + "." + volume.GroupSnapshot:
		return w.snapshot()
	case volume.ResourceSnapshotContents + "." + volume.GroupSnapshot:
		return w.content(volume.FinalizerContentBound, volume.AnnSnapshotCreating)
	case volume.ResourceGroupContents + "." + volume.GroupGroupSnapshot:
		return w.content(volume.FinalizerGroupContentBound, volume.AnnGroupCreating)
	case "configmaps":
		return w.intents()
	case "leases.coordination.k8s.io":
		return w.lease()
	case "events", "events.events.k8s.io":
		return nil
	default:
		return fmt.Errorf("they may not change %s", r)
	}
}

// intents returns an error unless a ConfigMap is of the node's intent log, or of that of a driver that is delegated to
// it.
func (w *write) intents() error {
	log, ok := logOf(w.GetName())
	switch {
	case !ok || w.GetNamespace() != volume.NamespaceSystem:
	case log == identity.HostIntents(w.node):
		return nil
	case identity.IsOfDriver(log):
		return w.leads("intents "+log, func(driver string) bool { return identity.DriverIntents(driver) == log })
	}
	return fmt.Errorf("ConfigMap %s/%s is not of their intent log", w.GetNamespace(), w.GetName())
}

// logOf returns the name of the intent log to which a ConfigMap belongs; see kube.LogPlace.
func logOf(name string) (log string, ok bool) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", false
	}
	number, err := strconv.ParseUint(name[i+1:], 10, 8)
	return name[:i], err == nil && strconv.FormatUint(number, 10) == name[i+1:]
}

// lease returns an error unless a lease is one of a driver that is delegated to the node.
func (w *write) lease() error {
	name := w.GetName()
	if w.GetNamespace() != volume.NamespaceSystem {
		return fmt.Errorf("lease %s/%s is not of a driver", w.GetNamespace(), name)
	}
	return w.leads("lease "+name, func(driver string) bool {
		return name == volume.ProvisionerLease(driver) || name == volume.AttacherLease(driver) ||
			name == volume.ResizerLease(driver) || name == volume.SnapshotterLease(driver) ||
			name == volume.HealthLease(driver)
	})
}

// leads returns an error unless a write concerns a driver that is delegated to the node.
func (w *write) leads(what string, isOf func(driver string) bool) error {
	ok, err := w.drivers.mayLead(w.node, isOf)
	switch {
	case err != nil:
		return unread("CSIDrivers", err)
	case !ok:
		return fmt.Errorf("%s is not of a driver that is delegated to the node", what)
	}
	return nil
}

// scopeOf returns for which volumes of a driver the node's controllers may call it.
func (w *write) scopeOf(driver string) (volume.Scope, error) {
	d, err := w.client.StorageV1().CSIDrivers().Get(w.ctx, driver, metav1.GetOptions{})
	switch {
	case err != nil:
		return volume.Scope{}, unread("CSIDriver "+driver, err)
	case volume.IsNodeLocal(d.Annotations):
		return volume.Scope{Node: w.node}, nil
	case volume.IsDelegatedTo(d.Annotations, w.node):
		return volume.Scope{}, nil
	}
	return volume.Scope{}, fmt.Errorf("driver %s is neither node-local nor delegated to the node: annotation %s=%q of "+
		"its CSIDriver", driver, volume.AnnControllers, d.Annotations[volume.AnnControllers])
}

// unread returns the error for an object that could not be read. It counts as a refusal only if the object does not
// exist, because a refused volume is deleted at the driver.
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

// serves returns an error unless the node's controllers serve a volume: its driver is delegated to the node, or it was
// created on the node by a node-local driver. It returns the scope in which they serve it.
func (w *write) serves(v *corev1.PersistentVolume) (volume.Scope, error) {
	if v.Spec.CSI == nil {
		return volume.Scope{}, fmt.Errorf("volume %s is not a CSI volume", v.Name)
	}
	scope, err := w.scopeOf(v.Spec.CSI.Driver)
	if on := provision.MadeOn(v); err == nil && !scope.Has(on) {
		err = fmt.Errorf("volume %s was not created on the node (annotation %s=%q)", v.Name, volume.AnnProvisionedOn, on)
	}
	return scope, err
}
