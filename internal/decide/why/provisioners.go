package why

import (
	"strings"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/drivers"
	"volplane.dev/volplane/internal/volume"
)

// provides says whether somebody makes volumes for a provisioner's name: a driver
// that is registered on a node, or a provisioner that is no CSI driver's, which has
// made some or shows signs of life.
func (w Walk) provides(provisioner string) bool {
	if drivers.Registered(w.View, provisioner, "") {
		return true
	}
	for _, v := range w.Volumes {
		if v.Spec.CSI == nil && v.Annotations[volume.AnnProvisionedBy] == provisioner {
			return true
		}
	}
	return cluster.Found(w.View.Drivers, provisioner) == nil && w.leases.Held(strings.ReplaceAll(provisioner, "/", "-"))
}
