//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/door"
	"volplane.dev/volplane/internal/driverfile"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/gather"
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
	homeless := named("", state.Only(volumes, func(v *corev1.PersistentVolume) bool {
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
		metav1.PatchOptions{FieldManager: door.FieldManager})
	switch {
	case apierrors.IsForbidden(err):
		fmt.Fprintf(h.err, "The CSIDriver of %[1]s does not say that it is node-local, and this host may not change it. "+
			"Until it does, the driver is called on the control plane's host only. There, before the first volume is made, "+
			"type:\n"+
			"  kubectl annotate csidriver %[1]s %[2]s=%[3]s\n", o.Name, volume.AnnControllers, volume.ControllersOnNodes)
		return nil
	case err != nil:
		return fmt.Errorf("annotate CSIDriver %s: %w", o.Name, err)
	}
	fmt.Fprintf(h.out, "csidriver/%s annotated: %s=%s\n", o.Name, volume.AnnControllers, volume.ControllersOnNodes)
	return nil
}
