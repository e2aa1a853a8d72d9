package driverfile

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// MadeBy is the value of volume.LabelMadeBy of the objects that are made for a driver of a file. They are not those of
// FlexVolume drivers, which are recognized by volume.Program.
const MadeBy = volume.Program + "-driver"

// CSIDriver returns the CSIDriver object of a driver that has none, from its file and what the driver reports
// about its controller service. Other fields keep Kubernetes' defaults.
func (d Driver) CSIDriver(c csi.ControllerCapabilities) *storagev1.CSIDriver {
	o := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Labels: map[string]string{volume.LabelMadeBy: MadeBy}},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(c.PublishUnpublish)},
	}
	if d.NodeLocal {
		o.Annotations = map[string]string{volume.AnnControllers: volume.ControllersOnNodes}
	}
	return o
}

// Asked returns the options with which a process is queried for its capabilities. A process without the controller role
// is not queried for those of the controller: some programs exit then. The node service is always queried, as
// csi-resizer does.
func (p Process) Asked() []csi.Option {
	if p.Has(RoleController) {
		return nil
	}
	return []csi.Option{csi.WithNodeOnly()}
}

// CheckController returns why what answers at the socket of a process with the role of the controller cannot be called
// as the controller of the driver; nil if it can, or if the whole driver has none. Only a driver in one process that
// does not say CONTROLLER_SERVICE has none: the others have theirs at another socket, and nothing may be concluded
// about how volumes are attached from one that is not known.
func (d Driver) CheckController(p Process, socket string, said *csi.Driver) error {
	if err := csi.CheckIs(said, d.Name); err != nil {
		return err
	}
	switch {
	case said.HasController:
		return nil
	case !p.Has(RoleNode):
		return fmt.Errorf("driver %s has no controller at %s, where its controller is said to be", d.Name, socket)
	case said.Plugin.ControllerService:
		return fmt.Errorf("driver %s says that it has a controller, and has none at %s: add the process that has it with "+
			"--controller-exec, or its socket with --controller-socket", d.Name, socket)
	}
	return nil
}
