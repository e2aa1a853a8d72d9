package sidecar

import (
	"log/slog"
	"time"
)

// The options below are those of upstream's sidecars. A zero value is volplane's own behaviour, so that a process
// without options works as a control plane's controllers do.

// Pace says how a controller calls the driver.
type Pace struct {
	// Timeout is the time limit of each call.
	Timeout time.Duration
	// RetryStart and RetryMax are the first and the longest pause before a failed call is repeated.
	RetryStart, RetryMax time.Duration
	// Workers is how many objects are worked on at the same time.
	Workers int
}

// ProvisionerOptions are those of csi-provisioner.
type ProvisionerOptions struct {
	Pace
	// NamePrefix begins the names of volumes, followed by "-" and the claim's UID; empty means "pvc".
	NamePrefix string
	// NameLength cuts the UID in the names of volumes, without its hyphens, to this many characters; 0 keeps all of it.
	NameLength int
	// DefaultFSType is the filesystem type of volumes whose class has none.
	DefaultFSType string
	// WithoutFSType leaves the filesystem type to the driver if nothing names one. Otherwise it is ext4 for volumes that
	// certainly are block devices on one node.
	WithoutFSType bool
	// ExtraMetadata adds the names of the claim and of the volume to the parameters of CreateVolume.
	ExtraMetadata bool
	// StrictTopology requires only the segment of the chosen node, not the others that the class allows.
	StrictTopology bool
	// WithoutImmediateTopology sends no topology for classes with the binding mode Immediate, unless they name topologies.
	WithoutImmediateTopology bool
	// WithoutTopology sends no topology at all.
	WithoutTopology bool
	// PublishReadOnly marks volumes whose claim has only read-only access modes as read-only.
	PublishReadOnly bool
	// AllowModeConversion lets a restored volume have another mode than that of its snapshot.
	AllowModeConversion bool
	// WithoutAttributes creates volumes as if no claim named a VolumeAttributesClass.
	WithoutAttributes bool
	// OtherNamespaces lets claims have the data of sources in other namespaces that a ReferenceGrant allows.
	OtherNamespaces bool
	// OnNode is for a driver which runs on each node.
	OnNode OnNode
}

// OnNode configures the provisioner of one node's volumes.
type OnNode struct {
	// Node is the node that this process provisions for; empty for a driver with one controller.
	Node string
	// WithoutImmediate leaves claims of classes with the binding mode Immediate alone until another program selects the
	// node. Otherwise the provisioners of all nodes compete for them: each waits for a random time, at most BaseDelay
	// at first and MaxDelay after several attempts, before it selects its own node. 0 means 20 seconds, and a minute.
	WithoutImmediate    bool
	BaseDelay, MaxDelay time.Duration
}

// CapacityOwner is the owner of the CSIStorageCapacity objects, which are deleted with it.
type CapacityOwner struct {
	// Namespace and Pod name the Pod of this process.
	Namespace, Pod string
	// Level is -1 for no owner, so that only the namespace is used, 0 for the Pod, 1 for its StatefulSet, DaemonSet or
	// ReplicaSet, and 2 for the Deployment.
	Level int
}

// AttacherOptions are those of csi-attacher.
type AttacherOptions struct {
	Pace
	// MaxEntries is how many volumes one call of ListVolumes returns, and 0 leaves it to the driver; nil means 500.
	MaxEntries *int32
	// DefaultFSType is the filesystem type of volumes without one.
	DefaultFSType string
}

// ResizerOptions are those of csi-resizer.
type ResizerOptions struct {
	Pace
	// ModifyTimeout is the time limit of ControllerModifyVolume.
	ModifyTimeout time.Duration
	// ExtraMetadata adds the names of the claim and of the volume to the parameters of ControllerModifyVolume.
	ExtraMetadata bool
}

// SnapshotterOptions are those of csi-snapshotter.
type SnapshotterOptions struct {
	Pace
	// NamePrefix and NameLength make the names of snapshots as in ProvisionerOptions; empty means "snapshot".
	NamePrefix string
	NameLength int
	// GroupNamePrefix and GroupNameLength are for groups; empty means "groupsnapshot".
	GroupNamePrefix string
	GroupNameLength int
	// ExtraMetadata adds the names of the snapshot and its content to the parameters of CreateSnapshot.
	ExtraMetadata bool
	// Node is the node whose volumes' snapshots this process takes; empty means all.
	Node string
	// Topology sends drivers the topology in which snapshots must be usable, and records on contents where they are.
	Topology bool
}

// SnapshotControllerOptions are those of snapshot-controller.
type SnapshotControllerOptions struct {
	Pace
	// Distributed marks each content with the node of its volume, whose csi-snapshotter serves it.
	Distributed bool
	// WithoutGroups leaves groups of snapshots alone.
	WithoutGroups bool
}

// HealthMonitorOptions are those of csi-external-health-monitor-controller.
type HealthMonitorOptions struct {
	Pace
	// Every is how often each volume, or the list of all, is queried.
	Every time.Duration
	// WatchesNodes says that claims get an event when the node of their Pod has failed.
	WatchesNodes bool
}

// HTTPOptions configure a server of metrics and of health. Several sidecars in one process have one each, and each
// serves the metrics and health of all.
type HTTPOptions struct {
	// Address is where it listens, such as ":8080".
	Address string
	// Flag is the flag that sets Address, for errors; empty means "--http-endpoint".
	Flag string
	// MetricsPath is the path of the metrics; empty means "/metrics".
	MetricsPath string
	// LeaderHealth serves /healthz/leader-election.
	LeaderHealth bool
	// Pprof serves /debug/pprof.
	Pprof bool
	// Health serves at /health whether the process is ready, and WithoutMetrics serves no metrics.
	Health, WithoutMetrics bool
}

// SnapshotMetadataOptions are those of csi-snapshot-metadata.
type SnapshotMetadataOptions struct {
	// Socket is the path of the driver's socket. The driver may start later and may restart.
	Socket string
	// Timeout is the time limit of the driver's calls whose answers are not streams.
	Timeout time.Duration
	// Port is that of the service.
	Port int
	// Cert and Key are the paths of its certificate and key, which may be replaced while it runs.
	Cert, Key string
	// MinVersion, CipherSuites and CurvePreferences restrict TLS, by Go's names; empty for Go's defaults.
	MinVersion, CipherSuites, CurvePreferences string
	// Audience is the required audience of clients' tokens; empty means that of the driver's SnapshotMetadataService.
	Audience string
	// StreamLimit is how long a stream may take.
	StreamLimit time.Duration
	// HTTP are the servers of metrics and of health.
	HTTP []HTTPOptions
}

// LivenessOptions configure the answer to a kubelet's question whether a driver lives.
type LivenessOptions struct {
	// Socket is the path of the driver's socket.
	Socket string
	// Address is where /healthz is served, such as ":9808".
	Address string
	// Timeout is the time limit of a probe, with the connection.
	Timeout time.Duration
	// HTTP are the servers of metrics.
	HTTP []HTTPOptions
	// Log is the log of the program.
	Log *slog.Logger
}

// RegistrarOptions configure the registration of a driver with the node agent of its
// host.
type RegistrarOptions struct {
	// Socket is the path of the driver's socket. The driver may start later and may
	// restart.
	Socket string
	// Endpoint is the path of the same socket on the host; empty means the usual path
	// below a kubelet's directory.
	Endpoint string
	// Dir is the directory of registration sockets.
	Dir string
	// Timeout is the time limit of the question for the driver's name.
	Timeout time.Duration
	// Health is the address of /healthz, such as ":9809"; empty means none.
	Health string
	// Pprof serves /debug/pprof there.
	Pprof bool
	// Log is the log of the program.
	Log *slog.Logger
}

// Term has the times of a leader election.
type Term struct {
	// Duration is how long other processes wait after the holder's last renewal.
	Duration time.Duration
	// Deadline is how long the holder works without being able to renew.
	Deadline time.Duration
	// Retry is the interval of attempts to acquire, and of those to renew after a failure.
	Retry time.Duration
	// LongOthers makes the leases other than a process's first one last longer, and renews them less often.
	LongOthers bool
}

// Choices are those of the controllers beside a driver.
type Choices struct {
	// ReconcileSync is the interval at which the driver's attachments are listed.
	ReconcileSync time.Duration
	// CapacityPoll is the interval at which the driver's capacity is queried.
	CapacityPoll time.Duration
	// CapacityForImmediate includes classes with immediate binding in these questions.
	CapacityForImmediate bool
	// DummyAttacher is the name of an attacher without a driver, whose attachments
	// are marked as attached; empty for none.
	DummyAttacher string
	// Provisioner and the others are the options of one controller each.
	Provisioner        ProvisionerOptions
	Attacher           AttacherOptions
	Resizer            ResizerOptions
	Snapshotter        SnapshotterOptions
	SnapshotController SnapshotControllerOptions
	HealthMonitor      HealthMonitorOptions
}

// ControllersOptions are the options of the controllers beside a driver, from flags and the environment.
type ControllersOptions struct {
	// Roles are the names of the controllers to run.
	Roles []string
	// Socket is the path of the driver's socket. The driver may start later and may
	// restart. A dummy attacher needs no socket.
	Socket string
	// Namespace is the namespace of the leases and of the provisioner's intents.
	Namespace string
	// Elects says that the process waits for the leases; otherwise it must be the
	// only one.
	Elects bool
	// Term has the times of the leader election.
	Term Term
	// ShortLeases holds all leases for no longer than the first one. Sidecars that were built with client-go 0.26 or
	// older (before 2023) need it: they wait for a lease of their own length, whatever the lease records.
	ShortLeases bool
	// BesideOthers allows a start although others hold leases of the driver in another namespace, or, without Elects,
	// anywhere.
	BesideOthers bool
	// LeaseLabels are the labels of the leases.
	LeaseLabels map[string]string
	Choices
	CapacityOwner *CapacityOwner
	// HTTP are the servers of metrics and of health.
	HTTP []HTTPOptions
}
