package options

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/sidecar"
)

// DataDirVariable is the environment variable with the data directory of a control plane.
const DataDirVariable = "VOLPLANE_DATA_DIR"

// DataDir returns the default data directory of a control plane.
func DataDir() string { return cmp.Or(os.Getenv(DataDirVariable), "/var/lib/volplane") }

// HostName returns the host's name as a Node name.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}

// NodeOptions configure a node agent.
type NodeOptions struct {
	// Name is the Node's name and must be the one in the identity of Config.
	Name string
	// RootDir is the directory of the agent's sockets, journal and mounts; only one
	// agent at a time may use it.
	RootDir string
	// DriversDir is the directory of the files about the CSI drivers that the host runs; empty for none.
	DriversDir string
	// Keep are more directories over which no volume may be mounted.
	Keep []string
	// Config is the client configuration with the node's own identity.
	Config *rest.Config
	// Drivers is the set to which the agent adds the drivers that register on this
	// node. An agent in the control plane's process uses the control plane's set.
	Drivers *csi.Set
	// Dial are options of the connections to drivers.
	Dial []csi.Option
	// ControlPlane has the addresses, host:port with commas, of the control plane in the agent's process; "" if there is
	// none.
	ControlPlane string
	// Sole says that no other control plane has the same objects.
	Sole bool
	// Bridged says that a bridge serves drivers of this node as CSI drivers, so that the
	// sources of their volumes are presented as CSI volumes.
	Bridged bool
	// StatsEvery is the pause between two reads of the usage and health of volumes; the default is a minute.
	StatsEvery time.Duration
	// Restored, if set, is called when the agent has registered and mounted again what Pods had; see node.Options.
	Restored func(ctx context.Context, works func(context.Context) error)
	// HTTP are the servers of metrics and of health.
	HTTP []sidecar.HTTPOptions
	// Docker serves claims to docker and podman on this host, or is nil.
	Docker *DoorOptions
	// Storage says which claims are served to systemd; nil for none.
	Storage *DoorOptions
	// Version is the version of the program, for its metrics.
	Version string
	// Metrics counts what the agent does, or is nil.
	Metrics *observe.Registry
	// Log is the log of the program.
	Log *slog.Logger
}

// StatsUsage describes the flag for StatsEvery, which has a kubelet's name.
const StatsUsage = "interval at which drivers are asked for the usage and the health of volumes, at least 1s"

// GateVerb is the first argument of a process that is to become a driver's program; see supervise.Gate. It is not a
// verb for users.
const GateVerb = "run-program"

// DriversOptions configure the CSI drivers that files describe.
type DriversOptions struct {
	// FilesDir is the directory of the files, one for each driver.
	FilesDir string
	// RootDir is the root directory of the node agent with which the drivers register.
	RootDir string
	// Node is the name of the node.
	Node string
	// Client reads the Secrets that files name, and records events at the Node.
	Client kubernetes.Interface
	// API is where programs reach the API server as service accounts; zero on hosts that may not have their tokens.
	API Endpoint
	// Objects says that the CSIDriver of a driver that has none is made, which Client must be allowed to.
	Objects bool
	// Controllers receives the drivers whose controllers have sockets of their own.
	Controllers *csi.Set
	// Dial are options of the connections to drivers.
	Dial []csi.Option
	// Log is the log of the program.
	Log *slog.Logger
}

// Endpoint is where an API server listens.
type Endpoint struct {
	Host, Port string
	// CA is the authority of its certificate, in PEM.
	CA []byte
}

// DriverOptions configure one instance of the bundled driver.
type DriverOptions struct {
	// NodeID is the name of the node in calls of the driver.
	NodeID string
	// RootDir is the root directory of the node agent with which it registers.
	RootDir string
	// PoolDir is the directory of the volumes. Several instances on one host may
	// share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk volumes may not use.
	Keep int64
	// Log is the log of the program.
	Log *slog.Logger
}

// ControllersOptions configure the controllers for one driver, in a cluster whose
// control plane has the other controllers.
type ControllersOptions struct {
	sidecar.ControllersOptions
	// Config is the client configuration.
	Config *rest.Config
	// Version is the version of the program, for its metrics.
	Version string
	// Log is the log of the program.
	Log *slog.Logger
}

// SnapshotMetadataOptions configure what serves the changed blocks of a driver's snapshots, beside the driver.
type SnapshotMetadataOptions struct {
	sidecar.SnapshotMetadataOptions
	// Config is the client configuration.
	Config *rest.Config
	// Version is the version of the program, for its metrics.
	Version string
	// Log is the log of the program.
	Log *slog.Logger
}

const (
	// DockerSocket is where docker finds the plugin "volplane".
	DockerSocket = "/run/docker/plugins/volplane.sock"
	// DockerGrace is how long an engine may take from a mount to the start of the container: it mounts the others first,
	// and may copy the files of an image.
	DockerGrace = time.Hour
	// StorageSocket is where systemd finds the storage provider "volplane".
	StorageSocket = "/run/systemd/io.systemd.StorageProvider/volplane"
	// StorageGrace is how long a client that was given a volume may have it in a way that cannot be seen, before
	// it is mounted. It is longer than any call.
	StorageGrace = 2 * time.Minute
)

// DoorOptions configure a door to those outside of Kubernetes: the volume plugin of docker and podman, or the storage
// provider of systemd.
type DoorOptions struct {
	// Socket is the path of its socket; empty for one that systemd hands over.
	Socket string
	// Config is the client configuration of a user who may create claims and Pods in Namespace.
	Config *rest.Config
	// Namespace has the claims that are the volumes behind the door.
	Namespace string
	// Node is the node agent of this host.
	Node string
	// Grace is how long a client counts as a user of a volume that nothing has mounted.
	Grace time.Duration
	// Version is that of this program.
	Version string
	// Transform prepares the objects that are held in memory, so that the process holds each once; nil if no other part of
	// it holds them.
	Transform func(object any) (any, error)
	// Why explains in a sentence what a Pod waits for; nil, or an empty sentence, if that is not known.
	Why func(ctx context.Context, namespace, pod string) string
	// Log is the log of the program.
	Log *slog.Logger
}

// PagePath is the path of the API server at which who has a right to it may ask for an Invitation, by POST.
const PagePath = "/volplane/page"

// Invitation is what a browser needs to see the page.
type Invitation struct {
	// URL opens the page once.
	URL string `json:"url"`
	// Ends is until when it does.
	Ends time.Time `json:"ends"`
}
