package volume

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// ProvisionerLease returns the name of the lease of a driver's provisioner. CSI sidecars hold it and those below, and
// so does any other process that calls the driver as its controller.
func ProvisionerLease(driver string) string { return leaseName("", driver) }

// AttacherLease returns the name of the lease of a driver's attacher.
func AttacherLease(driver string) string { return leaseName("external-attacher-leader-", driver) }

// ResizerLease returns the name of the lease of a driver's resizer.
func ResizerLease(driver string) string { return leaseName("external-resizer-", driver) }

// HealthLease returns the name of the lease of the process that queries a driver's controller for the
// health of volumes, as external-health-monitor does.
func HealthLease(driver string) string { return leaseName("external-health-monitor-leader-", driver) }

// SnapshotterLease returns the name of the lease of a driver's snapshotter, and SnapshotControllerLease that of the
// snapshot-controller of a cluster.
func SnapshotterLease(driver string) string { return leaseName("external-snapshotter-leader-", driver) }

// SnapshotControllerLease is described at SnapshotterLease.
const SnapshotControllerLease = "snapshot-controller-leader"

// LeaseOnNode returns the name of the lease for the same work on one node alone, beside a driver that is on each node.
func LeaseOnNode(name, node string) string {
	const most = 253
	if whole := name + "-" + node; len(whole) <= most {
		return whole
	}
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("%s-%x", name, sum[:16])
}

// ControlPlaneLease is the name of the lease of the one control plane that runs the controllers of the whole cluster,
// if several have one store. With LeaseOnNode it is the name of the lease of the control plane on a node.
const ControlPlaneLease = "volplane-control-plane"

// leaseName returns a name for an object, which has no upper case.
func leaseName(prefix, driver string) string {
	return prefix + strings.ToLower(SanitizedDriver(driver))
}

// AnnHeldWith on a lease names the first lease of its holder, without which the holder does not work, and the holder:
// "LEASE/HOLDER". It says nothing about other holders.
const AnnHeldWith = "volplane.dev/held-with"
