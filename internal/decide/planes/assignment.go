package planes

import "volplane.dev/volplane/internal/volume"

// Assignment says what a process of a control plane does as the controller of a driver.
type Assignment struct {
	// Calls says that it calls the driver, for the volumes in Scope.
	Calls bool
	Scope volume.Scope
	// Shared says that other processes of this control plane may call the driver for the same volumes.
	Shared bool
}

// OfControlPlane returns what a control plane does for a driver whose CSIDriver has these annotations: it calls each,
// but a node-local one only for the volumes of a scope. Unless it is alone, other control planes may call the others
// for the same volumes.
func OfControlPlane(driver map[string]string, scope volume.Scope, alone bool) Assignment {
	if volume.IsNodeLocal(driver) {
		return Assignment{Calls: true, Scope: scope}
	}
	return Assignment{Calls: true, Shared: !alone || len(volume.DelegatedTo(driver)) > 0}
}

// OfHost returns what a host without the control plane does for a driver: it calls a node-local one for the volumes of
// its node, and one that is delegated to it for all volumes.
func OfHost(driver map[string]string, node string) Assignment {
	if volume.IsNodeLocal(driver) {
		return Assignment{Calls: true, Scope: volume.Scope{Node: node}}
	}
	return Assignment{Calls: volume.IsDelegatedTo(driver, node), Shared: true}
}
