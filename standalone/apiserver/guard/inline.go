package guard

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	api "k8s.io/kubernetes/pkg/apis/core"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/volume"
)

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
