package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/apply"
	"volplane.dev/volplane/internal/cli/cluster"
	"volplane.dev/volplane/internal/cli/demo"
	"volplane.dev/volplane/internal/cli/driver"
	"volplane.dev/volplane/internal/cli/flex"
	"volplane.dev/volplane/internal/cli/get"
	"volplane.dev/volplane/internal/cli/host"
	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cli/status"
	"volplane.dev/volplane/internal/cli/volume"
	"volplane.dev/volplane/internal/cli/why"
	"volplane.dev/volplane/internal/doors/mount8"
	"volplane.dev/volplane/internal/process/revision"
	"volplane.dev/volplane/internal/sidecar"
)

// Streams are the program's input and outputs.
type Streams = shell.Streams

// Programs are the roles that run until their context ends.
type Programs = shell.Programs

// Main runs the command in args and returns the exit code: 0 for success,
// 1 for an error, 2 for a problem that the command has found.
func Main(ctx context.Context, args []string, s Streams, version string, p Programs) int {
	sh := shell.New(ctx, s, version, p)
	sh.Reach, sh.Planted = sh.ReachAny, func(ctx context.Context) { driver.PrintPlanted(ctx, sh) }
	if len(args) > 0 {
		if role, found := sidecar.RoleOf(args[0]); found {
			return cluster.RunSidecar(ctx, sh, role, args[0], args[1:])
		}
	}
	root := root(sh)
	if len(args) > 0 {
		root.SuggestionsMinimumDistance = shell.Distance(args[0])
	}
	return sh.Execute(ctx, root, args)
}

func root(s *shell.Shell) *cobra.Command {
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
		Version:           s.Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: s.Begin,
	}
	s.Flags.Register(c)
	c.SetGlobalNormalizationFunc(shell.VerbosityByLetter)
	c.AddGroup(&cobra.Group{ID: "objects", Title: "Claims, volumes and other objects:"},
		&cobra.Group{ID: "programs", Title: "Control plane, node agent and drivers:"})
	add(c, "objects", volume.Commands(s), get.Commands(s), apply.Commands(s), why.Commands(s), status.Commands(s))
	add(c, "programs", host.Commands(s), cluster.Commands(s),
		[]*cobra.Command{driver.Command(s), flex.Command(s), demo.Command(s, silently(s))})
	c.AddCommand(cluster.ManifestsCommand(s), versionCommand(s))
	normaliseSidecars(c)
	refuseOthers(c)
	completeOutputs(c)
	_ = c.RegisterFlagCompletionFunc("namespace", objects.CompleteNames(s, "namespace"))
	return c
}

// add adds the commands of several topics to a group.
func add(root *cobra.Command, group string, topics ...[]*cobra.Command) {
	for _, c := range slices.Concat(topics...) {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// silently runs verbs without output.
func silently(s *shell.Shell) demo.Verb {
	return func(ctx context.Context, args ...string) error {
		c := root(shell.New(ctx, Streams{In: s.In, Out: io.Discard, Err: io.Discard}, s.Version, s.Programs))
		c.SetArgs(args)
		return c.ExecuteContext(ctx)
	}
}

// Run runs the program that was started under the name in argv[0]: one of upstream's sidecars, a helper of
// mount(8), a plugin of kubectl, or Main.
func Run(ctx context.Context, argv []string, s Streams, version string, p Programs) int {
	switch name := filepath.Base(argv[0]); {
	case slices.Contains(sidecar.Programs(), name):
		return Main(ctx, append([]string{name}, argv[1:]...), s, version, p)
	case name == why.PluginProgram:
		return why.Plugin(ctx, argv[1:], s, version)
	case name == mount8.MountProgram, name == mount8.UmountProgram:
		return mount8.Run(ctx, volume.MountHost(s, version), name, argv[1:])
	case name == "csi-sidecars":
		return Main(ctx, append([]string{"controller"}, argv[1:]...), s, version, p)
	}
	return Main(ctx, argv[1:], s, version, p)
}

func versionCommand(s *shell.Shell) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			printed, err := s.PrintStructured(output, map[string]string{
				"version": s.Version, "revision": revision.Of(), "goVersion": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH,
			})
			if !printed {
				fmt.Fprintln(s.Out, "volplane", revision.With(s.Version))
			}
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "output format: json or yaml")
	return c
}
