package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

func controllerCommand(s *shell.Shell) *cobra.Command {
	var o sidecar.Options
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers for a driver in a cluster",
		Long: `Run the controllers for a CSI driver in a Kubernetes cluster until terminated.
They replace csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter, the
snapshot-controller and csi-external-health-monitor-controller, and use the same
leases, so that a sidecar and this command never work at the same time.

A flag of one sidecar has its name with the sidecar's in front of it, such as
--provisioner-timeout. Without the flag volplane does as it does everywhere, and
not what is the sidecar's default. Started under the name of a sidecar, as in
'volplane csi-attacher --help', the program has the sidecar's flags and defaults.

In a Pod, the command uses the Pod's service account.`,
		Example: `  volplane controller --csi-address /run/csi/socket
  volplane controller --controllers provisioner,attacher,resizer,snapshotter
  volplane controller --kubeconfig admin.conf --controllers attacher -v 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Settle(sidecar.Provisioner, cmd.Flags(), os.Getenv); err != nil {
				return err
			}
			return controller(cmd.Context(), s, o)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Roles, "controllers", []string{"provisioner", "attacher", "resizer"},
		"controllers to run: "+strings.Join(s.Programs.DriverControllers, ", "))
	f.StringVar(&o.DummyAttacher, "dummy-attacher", "",
		"mark the attachments of this attacher as attached, without a driver")
	o.AddControllers(f)
	_ = c.RegisterFlagCompletionFunc("controllers",
		cobra.FixedCompletions(s.Programs.DriverControllers, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func controller(ctx context.Context, s *shell.Shell, o sidecar.Options) error {
	if err := checkRoles(s, o.Roles); err != nil {
		return err
	}
	if o.DummyAttacher != "" && !slices.Equal(o.Roles, []string{"attacher"}) {
		return fmt.Errorf("--dummy-attacher has no driver, so only the attacher can run: add '--controllers attacher'")
	}
	config, err := s.Config()
	if err != nil {
		return err
	}
	limit(config, o)
	if o.Namespace == "" {
		if o.Namespace, err = s.Namespace(); err != nil {
			return err
		}
	}
	s.Flags.LogFormat = o.LogFormat
	return s.Programs.Controllers(ctx, options.ControllersOptions{
		ControllersOptions: o.ControllersOptions, Config: config, Version: s.Version, Log: s.Log(),
	})
}

// checkRoles refuses names that are not those of controllers.
func checkRoles(s *shell.Shell, roles []string) error {
	for _, r := range roles {
		if of, known := sidecar.RoleOf(r); known && of.OfNode() {
			return fmt.Errorf("%s is needed on each node, beside the driver there: start 'volplane-node-sidecars "+
				"--controllers=%s' in the driver's DaemonSet, and remove it from --controllers here", r, r)
		}
		if of, known := sidecar.RoleOf(r); known && of == sidecar.SnapshotMetadata {
			return fmt.Errorf("%s works in each replica, and not in the leader alone: start 'volplane %s' in a container of "+
				"its own, and remove it from --controllers here", r, r)
		}
		if !slices.Contains(s.Programs.DriverControllers, r) {
			return fmt.Errorf("unknown controller %q: use %s", r,
				strings.Join(s.Programs.DriverControllers, ", "))
		}
	}
	if len(roles) == 0 {
		return fmt.Errorf("--controllers is empty: use some of %s", strings.Join(s.Programs.DriverControllers, ", "))
	}
	return nil
}
