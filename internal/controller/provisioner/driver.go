package provisioner

import "volplane.dev/volplane/internal/csi"

// isBlockDriver says whether what the driver attaches to a node, stages there and expands there is certainly a block
// device. A process of the driver that serves no node does not say that.
func isBlockDriver(d *csi.Driver) bool {
	return d.Controller.PublishUnpublish && d.Node.StageUnstage && d.Node.Expand
}

// lacks returns the name of a capability that the driver lacks and that creating and deleting
// volumes requires; "" if it has all of them.
func lacks(d *csi.Driver) string {
	switch {
	case !d.Plugin.ControllerService:
		return "CONTROLLER_SERVICE"
	case !d.Controller.CreateDelete:
		return "CREATE_DELETE_VOLUME"
	}
	return ""
}
