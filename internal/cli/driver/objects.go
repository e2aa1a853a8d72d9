package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/volume"
)

// nodeLocalFlag is the flag --node-local, and whether it was given.
type nodeLocalFlag struct{ is, said bool }

// prepareNodeLocal looks whether a driver can become node-local, before anything is changed: its volumes must say which
// host has them, because those that do not would be served by the control plane's host from then on.
func (h *hostDrivers) prepareNodeLocal(ctx context.Context, d driverfile.Driver) error {
	if !d.NodeLocal || h.client == nil {
		return nil
	}
	o, err := h.client.StorageV1().CSIDrivers().Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get CSIDriver %s: %w", d.Name, err)
	}
	if err == nil && volume.IsNodeLocal(o.Annotations) {
		return nil
	}
	if err == nil && o.Annotations[volume.AnnControllers] != "" {
		return fmt.Errorf("the CSIDriver of %s has the annotation %s=%.80q: remove it before the driver becomes node-local",
			d.Name, volume.AnnControllers, o.Annotations[volume.AnnControllers])
	}
	return h.checkHomes(ctx, d.Name)
}

// checkHomes fails if a driver has volumes that do not say which host has them.
func (h *hostDrivers) checkHomes(ctx context.Context, driver string) error {
	volumes, err := gather.Every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{},
		h.client.CoreV1().PersistentVolumes().List)
	if apierrors.IsForbidden(err) {
		return nil // a host that has joined may not change the CSIDriver either, and says so later
	}
	if err != nil {
		return err
	}
	homeless := shell.Named("", state.Only(volumes, func(v *corev1.PersistentVolume) bool {
		return v.Spec.CSI != nil && v.Spec.CSI.Driver == driver && v.Annotations[volume.AnnProvisionedOn] == ""
	}))
	if len(homeless) == 0 {
		return nil
	}
	return fmt.Errorf("driver %s has %d PersistentVolumes that do not say which host has them (%s): once it is "+
		"node-local, only the control plane's host would attach, expand and delete them. Write to each the name of "+
		"its host's node, which is this one if no other host has run the driver, and repeat the command:\n"+
		"  kubectl annotate pv %s %s=%s", driver, len(homeless), some(homeless), strings.Join(homeless, " "),
		volume.AnnProvisionedOn, h.node)
}

// sayNodeLocal adds the annotation of node-local drivers to a CSIDriver. A user without the permission learns who has
// it.
func (h *hostDrivers) sayNodeLocal(ctx context.Context, o *storagev1.CSIDriver) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": o.ResourceVersion,
		"annotations":     map[string]any{volume.AnnControllers: volume.ControllersOnNodes},
	}})
	if err != nil {
		return err
	}
	_, err = h.client.StorageV1().CSIDrivers().Patch(ctx, o.Name, types.MergePatchType, body,
		metav1.PatchOptions{FieldManager: doors.FieldManager})
	switch {
	case apierrors.IsForbidden(err):
		fmt.Fprintf(h.err, "The CSIDriver of %[1]s does not say that it is node-local, and this host may not change it. "+
			"Until it does, the driver is called on the control plane's host only. There, before the first volume is created, "+
			"type:\n  kubectl annotate csidriver %[1]s %[2]s=%[3]s\n", o.Name, volume.AnnControllers, volume.ControllersOnNodes)
		return nil
	case err != nil:
		return fmt.Errorf("annotate CSIDriver %s: %w", o.Name, err)
	}
	fmt.Fprintf(h.out, "csidriver/%s annotated: %s=%s\n", o.Name, volume.AnnControllers, volume.ControllersOnNodes)
	return nil
}

// wantedClass is a class that is to be created; nil if none is requested or it exists.
type wantedClass struct {
	name       string
	parameters map[string]string
	isDefault  bool
}

// prepareClass looks whether a class can be made for a driver, before anything is changed.
func (h *hostDrivers) prepareClass(ctx context.Context, driver string, f classFlags) (*wantedClass, error) {
	if f.name == "" {
		return nil, nil
	}
	parameters, err := shell.Pairs("--parameter", f.parameters, shell.AsIs)
	if err != nil {
		return nil, err
	}
	if h.client == nil {
		return nil, fmt.Errorf("class %s cannot be created: %w", f.name, h.absent)
	}
	has, err := h.client.StorageV1().StorageClasses().Get(ctx, f.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return &wantedClass{f.name, parameters, f.isDefault}, nil
	case err != nil:
		return nil, fmt.Errorf("get class %s: %w", f.name, err)
	case has.Provisioner != driver:
		return nil, fmt.Errorf("class %s exists and belongs to driver %s: choose another name with --class", f.name,
			has.Provisioner)
	case !maps.Equal(has.Parameters, parameters):
		return nil, fmt.Errorf("class %s exists with other parameters, which cannot be changed: choose another name with "+
			"--class, or delete it with 'volplane delete sc %s'", f.name, f.name)
	}
	return nil, nil
}

// ensureObjects makes the CSIDriver of a registered driver, if there is none, and its class.
func (h *hostDrivers) ensureObjects(ctx context.Context, d driverfile.Driver, class *wantedClass) error {
	has, err := h.client.StorageV1().CSIDrivers().Get(ctx, d.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get CSIDriver %s: %w", d.Name, err)
	}
	if err == nil && d.NodeLocal && !volume.IsNodeLocal(has.Annotations) {
		if err := h.sayNodeLocal(ctx, has); err != nil {
			return err
		}
	}
	if err == nil && class == nil {
		return nil
	}
	said, err := h.describe(ctx, d)
	if err != nil {
		return fmt.Errorf("driver %s is registered, but what its CSIDriver must be is not known: %w", d.Name, err)
	}
	o := d.CSIDriver(said.Controller)
	_, err = h.client.StorageV1().CSIDrivers().Create(ctx, o, metav1.CreateOptions{FieldManager: doors.FieldManager})
	if err = h.made("csidriver/"+d.Name, err); err != nil || class == nil {
		return err
	}
	c := class.object(d.Name, said)
	_, err = h.client.StorageV1().StorageClasses().Create(ctx, c, metav1.CreateOptions{FieldManager: doors.FieldManager})
	return h.made("storageclass/"+c.Name, err)
}

// made reports the creation of an object, which another process may have done first.
func (h *hostDrivers) made(name string, err error) error {
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		return fmt.Errorf("create %s: %w", name, err)
	}
	fmt.Fprintf(h.out, "%s created\n", name)
	return nil
}

// describe queries each process of a driver for its capabilities, and joins the answers.
func (h *hostDrivers) describe(ctx context.Context, d driverfile.Driver) (*csi.Driver, error) {
	all := &csi.Driver{Name: d.Name}
	for _, p := range d.Processes {
		said, err := ask(ctx, d.Socket(p, h.plugins), p.Asked()...)
		if err != nil {
			return nil, fmt.Errorf("ask at %s, as root on this host: %w", d.Socket(p, h.plugins), err)
		}
		if p.Has(driverfile.RoleController) {
			if err := d.CheckController(p, d.Socket(p, h.plugins), said); err != nil {
				return nil, err
			}
			all.Controller = said.Controller
			all.Plugin = said.Plugin
		}
		if p.Has(driverfile.RoleNode) {
			all.Node = said.Node
		}
	}
	return all, nil
}

// object returns the class for a driver. It binds late if the driver says that not every node reaches every
// volume, because the Pod then decides where the volume must be reachable.
func (c *wantedClass) object(driver string, said *csi.Driver) *storagev1.StorageClass {
	o := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.name, Labels: map[string]string{volume.LabelMadeBy: driverfile.MadeBy},
		},
		Provisioner:          driver,
		Parameters:           c.parameters,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(said.Controller.Expand || said.Node.Expand),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingImmediate),
	}
	if said.Plugin.AccessibilityConstraints {
		o.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	}
	if c.isDefault {
		o.Annotations = map[string]string{volume.AnnDefaultClass: "true"}
	}
	return o
}

// classFlags describe the StorageClass that is made with a driver.
type classFlags struct {
	name       string
	parameters []string
	isDefault  bool
}

// check refuses flags about a class that cannot be followed.
func (f *classFlags) check(wait time.Duration) error {
	switch {
	case f.name == "" && (len(f.parameters) > 0 || f.isDefault):
		return errors.New("--parameter and --default are about a class: name it with --class")
	case f.name != "" && wait <= 0:
		return errors.New("--class needs what the driver reports about itself: do not use --wait 0")
	case f.name != "" && len(validation.IsDNS1123Subdomain(f.name)) > 0:
		return fmt.Errorf("--class %.80q is not a name of an object: %s", f.name, validation.IsDNS1123Subdomain(f.name)[0])
	}
	return nil
}
