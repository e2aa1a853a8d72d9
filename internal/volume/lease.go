package volume

import "strings"

// ProvisionerLease returns the name of the lease of a driver's provisioner. CSI sidecars hold it and those below, and
// whoever else calls the driver as its controller.
func ProvisionerLease(driver string) string { return leaseName("", driver) }

// AttacherLease returns the name of the lease of a driver's attacher.
func AttacherLease(driver string) string { return leaseName("external-attacher-leader-", driver) }

// ResizerLease returns the name of the lease of a driver's resizer.
func ResizerLease(driver string) string { return leaseName("external-resizer-", driver) }

// HealthLease returns the name of the lease of whoever asks a driver's controller how volumes are, as
// external-health-monitor does.
func HealthLease(driver string) string { return leaseName("external-health-monitor-leader-", driver) }

// SnapshotterLease returns the name of the lease of a driver's snapshotter, and SnapshotControllerLease that of the
// snapshot-controller of a cluster.
func SnapshotterLease(driver string) string { return leaseName("external-snapshotter-leader-", driver) }

// SnapshotControllerLease is described at SnapshotterLease.
const SnapshotControllerLease = "snapshot-controller-leader"

// leaseName returns a name for an object, which has no upper case.
func leaseName(prefix, driver string) string {
	return prefix + strings.ToLower(SanitizedDriver(driver))
}
