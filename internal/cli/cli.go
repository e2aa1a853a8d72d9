//go:build linux

package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/orphans"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

// Programs are the roles that run until their context ends.
type Programs struct {
	// Node runs a node agent, the FlexVolume bridge of its host and the bundled driver;
	// bridge and driver may be nil.
	Node func(ctx context.Context, o program.NodeOptions, bridge *BridgeOptions, driver *program.DriverOptions) error
	// Docker serves claims to docker and podman.
	Docker func(ctx context.Context, o program.DoorOptions) error
	// StorageProvider serves claims to systemd.
	StorageProvider func(ctx context.Context, o program.DoorOptions) error
	// LocalDriver runs the bundled driver.
	LocalDriver func(ctx context.Context, o program.DriverOptions) error
	// Controllers runs controllers for one driver in a cluster.
	Controllers func(ctx context.Context, o program.ControllersOptions) error
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
	SnapshotMetadata func(ctx context.Context, o program.SnapshotMetadataOptions) error
	// Liveness answers whether a driver lives.
	Liveness func(ctx context.Context, o sidecar.LivenessOptions) error
}

// Main runs the command in args and returns the exit code: 0 for success,
// 1 for an error, 2 for a problem that the command has found.
func Main(ctx context.Context, args []string, s Streams, version string, p Programs) int {
	sh := newShell(ctx, s, version, p)
	sh.reach, sh.planted = sh.reachAny, func(ctx context.Context) { sh.tellFaults(ctx) }
	if len(args) > 0 {
		if role, found := sidecar.RoleOf(args[0]); found {
			return sh.sidecar(ctx, role, args[0], args[1:])
		}
	}
	root := sh.root()
	if len(args) > 0 {
		root.SuggestionsMinimumDistance = distance(args[0])
	}
	return sh.execute(ctx, root, args)
}

func (s *shell) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "volplane",
		Short: "Manage storage volumes, from the claim to the mounted path",
		Long: `Manage the claims, volumes and mounts of a volplane control plane or of any
Kubernetes cluster.

Exit codes: 0 success, 1 error. 'why', 'status', 'flex lint', 'flex doctor' and
'driver doctor' exit with 2 when they have found a problem, 'driver call' with 64 and the
gRPC code that the driver has answered.`,
		Example: `  volplane up                      # start the control plane on this host
  volplane create data --size 10Gi # ask for a volume by name: a claim
  volplane mount data /mnt         # mount the claim "data" at /mnt
  volplane why pvc/data            # explain what the claim waits for`,
		// It is printed as cobra does by itself: a template would keep all methods in the program, which is 18 MB.
		Version:           s.version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: s.quiet,
	}
	s.flags.register(c)
	c.SetGlobalNormalizationFunc(verbosityByLetter)
	c.AddGroup(&cobra.Group{ID: "objects", Title: "Claims, volumes and other objects:"},
		&cobra.Group{ID: "programs", Title: "Control plane, node agent and drivers:"})
	add(c, "objects", s.volumeCommands(), s.getCommands(), s.applyCommands(), s.whyCommands(), s.statusCommands())
	add(c, "programs", s.hostCommands(), s.clusterCommands(),
		[]*cobra.Command{s.driverCommand(), s.flexCommand(), s.demoCommand()})
	c.AddCommand(s.manifestsCommand(), s.versionCommand())
	normaliseSidecars(c)
	refuseOthers(c)
	completeOutputs(c)
	_ = c.RegisterFlagCompletionFunc("namespace", s.completeNames("namespace"))
	return c
}

// add adds the commands of several topics to a group.
func add(root *cobra.Command, group string, topics ...[]*cobra.Command) {
	for _, c := range slices.Concat(topics...) {
		c.GroupID = group
		root.AddCommand(c)
	}
}
