package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/orphans"
	"volplane.dev/volplane/internal/program"
)

// Exit codes of the program.
const (
	exitOK      = 0
	exitError   = 1
	exitProblem = 2
)

// Programs are the roles that run until their context ends.
type Programs struct {
	// Node runs a node agent, the FlexVolume bridge of its host and the bundled driver;
	// bridge and driver may be nil.
	Node func(ctx context.Context, o program.NodeOptions, bridge *BridgeOptions, driver *program.DriverOptions) error
	// LocalDriver runs the bundled driver.
	LocalDriver func(ctx context.Context, o program.DriverOptions) error
	// Controllers runs controllers for one driver in a cluster.
	Controllers func(ctx context.Context, o program.ControllersOptions) error
	// DriverControllers are the names of these controllers.
	DriverControllers []string
	// Rights returns the rights that a process with these controllers needs.
	Rights func(roles []string, driver, namespace string, elects bool) []kube.Access
	// Pool returns the records of the bundled driver in a pool directory of this
	// host; nil if they cannot be read.
	Pool func(dir string) orphans.Records
	// Bridge serves the FlexVolume drivers of this host.
	Bridge func(ctx context.Context, o BridgeOptions) error
	// Registrar registers a driver with a node agent.
	Registrar func(ctx context.Context, o program.RegistrarOptions) error
}

// Streams are the program's input and outputs.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// shell holds what all commands of one call share.
type shell struct {
	Streams
	programs Programs
	version  string
	flags    flags
}

// errProblem ends a command that has found a problem and printed it.
var errProblem = errors.New("problem found")

// Main runs the command in args and returns the exit code: 0 for success,
// 1 for an error, 2 for a problem that the command has found.
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
	var refused *callError
	if errors.As(err, &refused) {
		fmt.Fprintln(s.Err, "error:", refused)
		return refused.exitCode()
	}
	fmt.Fprintln(s.Err, "error:", sh.explain(err))
	return exitError
}

func (s *shell) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "volplane",
		Short: "Manage storage volumes, from the claim to the mounted path",
		Long: `Manage the claims, volumes and mounts of a volplane control plane or of any
Kubernetes cluster.

Exit codes: 0 success, 1 error. 'why', 'flex lint', 'flex doctor' and 'driver
doctor' exit with 2 when they have found a problem, 'driver call' with 64 and the
gRPC code that the driver has answered.`,
		Example: `  volplane up                      # start the control plane on this host
  volplane apply -f claim.yaml     # create a claim
  volplane mount data /mnt         # mount the claim "data" at /mnt
  volplane why pvc/data            # explain what the claim waits for`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			// The libraries log errors that they also return.
			if klog.SetLogger(logr.Discard()); s.flags.verbosity > 0 {
				s.log()
			}
		},
	}
	s.flags.register(c)
	c.AddGroup(&cobra.Group{ID: "objects", Title: "Claims, volumes and other objects:"},
		&cobra.Group{ID: "programs", Title: "Control plane, node agent and drivers:"})
	for _, o := range []*cobra.Command{
		s.applyCommand(), s.getCommand(), s.deleteCommand(), s.mountCommand(), s.umountCommand(), s.whyCommand(),
		s.snapshotCommand(), s.restoreSnapshotCommand(),
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

// log returns the program's log and makes the libraries use it. They log only
// errors unless -v asks for more.
func (s *shell) log() *slog.Logger {
	level, libraries := slog.LevelInfo, slog.LevelError
	if s.flags.verbosity > 0 {
		level, libraries = slog.LevelDebug, slog.Level(-s.flags.verbosity)
	}
	at := func(l slog.Level) slog.Handler { return slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: l}) }
	klog.SetLogger(logr.FromSlogHandler(at(libraries)))
	return slog.New(at(level))
}
