// Package program has the options of the programs that run until they are stopped: the command line
// reads them, and package app runs the programs. All fields are set before the start.
package program

import (
	"cmp"
	"log/slog"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/csi"
)

// DataDir returns the default data directory of a control plane.
func DataDir() string { return cmp.Or(os.Getenv("VOLPLANE_DATA_DIR"), "/var/lib/volplane") }

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
	// ControlPlane says that the agent runs in the control plane's process.
	ControlPlane bool
	// Bridged says that a bridge serves drivers of this node as CSI drivers, so that the
	// sources of their volumes are presented as CSI volumes.
	Bridged bool
	// StatsEvery is the pause between two reads of the usage and health of volumes; the default is a minute.
	StatsEvery time.Duration
	// Log is the log of the program.
	Log *slog.Logger
}

// StatsUsage describes the flag for StatsEvery, which has a kubelet's name.
const StatsUsage = "interval at which drivers are asked for the usage and the health of volumes, at least 1s"

// GateVerb is the first argument of a process that is to become a driver's program; see supervise.Gate. It is no verb
// for people.
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
	// Config is the client configuration.
	Config *rest.Config
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
	// ReconcileSync is the interval at which the driver is asked for its attachments.
	ReconcileSync time.Duration
	// CapacityPoll is the interval at which the driver is asked for its capacity.
	CapacityPoll time.Duration
	// CapacityForImmediate includes classes with immediate binding in these questions.
	CapacityForImmediate bool
	// DummyAttacher is the name of an attacher without a driver, whose attachments
	// are marked as attached; empty for none.
	DummyAttacher string
	// Log is the log of the program.
	Log *slog.Logger
}

// Term has the times of a leader election.
type Term struct {
	// Duration is how long other processes wait after the holder's last renewal.
	Duration time.Duration
	// Deadline is how long the holder works without being able to renew.
	Deadline time.Duration
	// Retry is the interval of renewals and of attempts to acquire.
	Retry time.Duration
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
	// Log is the log of the program.
	Log *slog.Logger
}
