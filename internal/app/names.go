package app

import (
	"slices"

	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/modifier"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/volume"
)

// The roles of a standalone control plane beside its controllers.
const (
	// ReaderRole is the role whose identity fills the shared caches.
	ReaderRole = "reader"
	// LeasesRole is the role whose identity holds the leases of drivers.
	LeasesRole = "leases"
	// MetadataRole is the role whose identity serves the changed blocks of drivers, and that of their sidecar.
	MetadataRole = "snapshot-metadata"
)

// driverRole is a controller that can run for one driver in a cluster. The others manage objects of a whole cluster.
type driverRole struct {
	name string
	// lease returns the name of the lease that a CSI sidecar holds for the same work.
	lease func(driver string) string
}

// driverRoles returns the controllers that can run for one driver, in start order.
func driverRoles() []driverRole {
	return []driverRole{
		{provisioner.Declaration().Name, volume.ProvisionerLease},
		{capacity.Declaration().Name, volume.ProvisionerLease},
		{attacher.Declaration().Name, volume.AttacherLease},
		{resizer.Declaration().Name, volume.ResizerLease},
		{modifier.Declaration().Name, volume.ResizerLease},
		{snapshotter.Declaration().Name, volume.SnapshotterLease},
		{health.Declaration().Name, volume.HealthLease},
		{groupsnapshotter.Declaration().Name, volume.SnapshotterLease},
	}
}

// DriverControllers returns the names of the controllers that can run for one driver in a cluster, in start order.
func DriverControllers() []string {
	var out []string
	for _, r := range driverRoles() {
		out = append(out, r.name)
	}
	return out
}

// ClusterControllers returns the names of the controllers that can run in a cluster of Kubernetes: those for one
// driver, and the snapshot-controller, which Kubernetes does not have. The latter is two: the one for groups of
// snapshots has no name of its own, as in upstream's program.
func ClusterControllers() []string {
	return append(DriverControllers(), snapshotter.BindingDeclaration().Name)
}

// leaseNames returns the names of the leases for controllers of one driver. Their order is always the same, so that
// processes that acquire several cannot deadlock.
func leaseNames(roles []string, driver string) []string {
	var out []string
	for _, r := range driverRoles() {
		if name := r.lease(driver); slices.Contains(roles, r.name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if slices.Contains(roles, snapshotter.BindingDeclaration().Name) {
		out = append(out, volume.SnapshotControllerLease)
	}
	return out
}

// runs says whether a controller is one of those with these names.
func runs(roles []string, name string) bool {
	if name == groupsnapshotter.BindingDeclaration().Name {
		name = snapshotter.BindingDeclaration().Name
	}
	return slices.Contains(roles, name)
}

// onDemand says whether a controller runs only where its name is given. A control plane of volplane says by Nodes and
// by explanations what the watcher of nodes says by events.
func onDemand(role string) bool { return role == health.WatcherDeclaration().Name }
