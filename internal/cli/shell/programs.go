//go:build linux

package shell

import (
	"context"

	"volplane.dev/volplane/internal/gather/orphans"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

// Programs are the roles that run until their context ends.
type Programs struct {
	// Node runs a node agent, the FlexVolume bridge of its host and the bundled driver;
	// bridge and driver may be nil.
	Node func(ctx context.Context, o options.NodeOptions, bridge *BridgeOptions, driver *options.DriverOptions) error
	// Docker serves claims to docker and podman.
	Docker func(ctx context.Context, o options.DoorOptions) error
	// StorageProvider serves claims to systemd.
	StorageProvider func(ctx context.Context, o options.DoorOptions) error
	// LocalDriver runs the bundled driver.
	LocalDriver func(ctx context.Context, o options.DriverOptions) error
	// Controllers runs controllers for one driver in a cluster.
	Controllers func(ctx context.Context, o options.ControllersOptions) error
	// DriverControllers are the names of these controllers.
	DriverControllers []string
	// Rights returns the rights that a process with these controllers needs; onNodes says that each node has one.
	Rights func(roles []string, driver, namespace string, elects, onNodes bool) []kube.Access
	// Pool returns the records of the bundled driver in a pool directory of this
	// host; nil if they cannot be read.
	Pool func(dir string) orphans.Records
	// Bridge serves the FlexVolume drivers of this host.
	Bridge func(ctx context.Context, o BridgeOptions) error
	// Registrar registers a driver with a node agent.
	Registrar func(ctx context.Context, o sidecar.RegistrarOptions) error
	// SnapshotMetadata serves the changed blocks of a driver's snapshots.
	SnapshotMetadata func(ctx context.Context, o options.SnapshotMetadataOptions) error
	// Liveness answers whether a driver lives.
	Liveness func(ctx context.Context, o sidecar.LivenessOptions) error
}
