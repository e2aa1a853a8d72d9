package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/orphans"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitError   = 1
	exitProblem = 2
)

// Programs are the roles that run until their context ends.
type Programs struct {
	// Node runs a node agent.
	Node func(ctx context.Context, o NodeOptions) error
	// LocalDriver runs the bundled driver.
	LocalDriver func(ctx context.Context, o DriverOptions) error
	// NodeWithDriver runs both, the driver stopping last.
	NodeWithDriver func(ctx context.Context, n NodeOptions, d DriverOptions) error
	// Controllers runs controllers beside a driver.
	Controllers func(ctx context.Context, o ControllersOptions) error
	// Beside are the names of these controllers, and Rights returns what a
	// process of some of them asks of the API server.
	Beside []string
	Rights func(roles []string, driver, namespace string, elects bool) []kube.Access
	// Pool returns what the bundled driver keeps of its volumes in a directory of
	// this host; nil if that cannot be read here.
	Pool func(dir string) orphans.Records
	// Bridge serves the FlexVolume drivers of this host.
	Bridge func(ctx context.Context, o BridgeOptions) error
	// Registrar announces a driver to a node agent.
	Registrar func(ctx context.Context, o RegistrarOptions) error
}

// NodeOptions says which node the agent is and where it works.
type NodeOptions struct {
	// Name is the Node's name; RootDir holds sockets, journal and mounts.
	Name, RootDir string
	// Keep are further directories that no volume is mounted at.
	Keep []string
	// Config is the way to the API server with the node's identity.
	Config *rest.Config
	// Bridge, if any, has the FlexVolume drivers of this host served, and
	// FlexVolumes mounted by them.
	Bridge *BridgeOptions
	Log    *slog.Logger
}

// DriverOptions says where the bundled driver works.
type DriverOptions struct {
	// NodeID is the node's name, RootDir the node agent's root directory,
	// PoolDir the directory of the volumes.
	NodeID, RootDir, PoolDir string
	Log                      *slog.Logger
}

// ControllersOptions says which controllers run beside a driver.
type ControllersOptions struct {
	// Config is the way to the API server.
	Config *rest.Config
	// Roles are the names of the controllers, Socket is the driver's.
	Roles  []string
	Socket string
	// Namespace holds leases and intents. Elects waits for the leases, which are
	// held as the three times say.
	Namespace                 string
	Elects                    bool
	Duration, Deadline, Retry time.Duration
	// ReconcileSync, CapacityPoll and CapacityForImmediate say how often the
	// driver is asked, and of what; DummyAttacher has none.
	ReconcileSync, CapacityPoll time.Duration
	CapacityForImmediate        bool
	DummyAttacher               string
	Log                         *slog.Logger
}

// RegistrarOptions says where a driver is announced to the node agent.
type RegistrarOptions struct {
	// Socket is the driver's, Endpoint the same one on the host, and Dir the
	// directory of registration sockets.
	Socket, Endpoint, Dir string
	Log                   *slog.Logger
}

// Streams are the program's input and outputs.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// shell is what all commands of one call share.
type shell struct {
	Streams
	programs Programs
	version  string
	flags    flags
}

// errProblem ends a command that found a problem and has already told it.
var errProblem = errors.New("problem found")

// Main runs the command that args name and returns the exit code: 0 done or
// healthy, 1 error, 2 (only `why`) something waits or is broken.
func Main(ctx context.Context, args []string, s Streams, version string, p Programs) int {
	sh := &shell{Streams: s, programs: p, version: version}
	root := sh.root()
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblem):
		return exitProblem
	}
	fmt.Fprintln(s.Err, "error:", sh.explain(err))
	return exitError
}

func (s *shell) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "volplane",
		Short: "Storage volumes from a claim to a mounted path, and back",
		Long: `volplane works with the claims, volumes and consumers of a volplane control
plane or of any Kubernetes cluster.

Exit codes: 0 done, 1 error; 'why' has a third: 2, something waits or is broken.`,
		Example: `  volplane up                      # start the control plane on this host
  volplane apply -f claim.yaml     # ask for a volume
  volplane mount data /mnt         # mount the claim "data" at /mnt
  volplane why pvc/data            # who waits for whom`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			// What the libraries complain of comes back as an error as well.
			if klog.SetLogger(logr.Discard()); s.flags.verbosity > 0 {
				s.log()
			}
		},
	}
	s.flags.register(c)
	c.AddGroup(&cobra.Group{ID: "objects", Title: "Claims, volumes and other objects:"},
		&cobra.Group{ID: "programs", Title: "Programs that run:"})
	for _, o := range []*cobra.Command{
		s.applyCommand(), s.getCommand(), s.deleteCommand(), s.mountCommand(), s.umountCommand(), s.whyCommand(),
		s.snapshotStateCommand(), s.statusCommand(), s.orphansCommand(), s.adoptCommand(),
	} {
		o.GroupID = "objects"
		c.AddCommand(o)
	}
	for _, o := range []*cobra.Command{
		s.upCommand(), s.inviteCommand(), s.backupCommand(), s.restoreCommand(), s.checkCommand(), s.nodeCommand(),
		s.controllerCommand(), s.registrarCommand(), s.driverCommand(), s.flexCommand(), s.demoCommand(),
	} {
		o.GroupID = "programs"
		c.AddCommand(o)
	}
	c.AddCommand(s.manifestsCommand(), s.versionCommand())
	return c
}

// log returns the program's log and makes the libraries use it: they only
// speak up about errors unless asked for more.
func (s *shell) log() *slog.Logger {
	level, libraries := slog.LevelInfo, slog.LevelError
	if s.flags.verbosity > 0 {
		level, libraries = slog.LevelDebug, slog.Level(-s.flags.verbosity)
	}
	at := func(l slog.Level) slog.Handler { return slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: l}) }
	klog.SetLogger(logr.FromSlogHandler(at(libraries)))
	return slog.New(at(level))
}
