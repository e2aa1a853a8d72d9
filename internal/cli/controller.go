//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

func (s *shell) controllerCommand() *cobra.Command {
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
			return s.controller(cmd.Context(), o)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Roles, "controllers", []string{"provisioner", "attacher", "resizer"},
		"controllers to run: "+strings.Join(s.programs.DriverControllers, ", "))
	f.StringVar(&o.DummyAttacher, "dummy-attacher", "",
		"mark the attachments of this attacher as attached, without a driver")
	o.AddControllers(f)
	_ = c.RegisterFlagCompletionFunc("controllers",
		cobra.FixedCompletions(s.programs.DriverControllers, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// normaliseSidecars has the command of controllers know the other names of its flags, too. It must be called when the
// command is in its place: there it gets the names that all commands know, instead of any that it had.
func normaliseSidecars(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() == "controller" {
			c.SetGlobalNormalizationFunc(func(set *pflag.FlagSet, name string) pflag.NormalizedName {
				return sidecar.Normalise(set, string(verbosityByLetter(set, name)))
			})
		}
	}
}

func (s *shell) controller(ctx context.Context, o sidecar.Options) error {
	if err := s.checkRoles(o.Roles); err != nil {
		return err
	}
	if o.DummyAttacher != "" && !slices.Equal(o.Roles, []string{"attacher"}) {
		return fmt.Errorf("--dummy-attacher has no driver, so only the attacher can run: add '--controllers attacher'")
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	limit(config, o)
	if o.Namespace == "" {
		if o.Namespace, err = s.namespace(); err != nil {
			return err
		}
	}
	s.flags.logFormat = o.LogFormat
	return s.programs.Controllers(ctx, program.ControllersOptions{
		ControllersOptions: o.ControllersOptions, Config: config, Version: s.version, Log: s.log(),
	})
}

// checkRoles refuses names that are not those of controllers.
func (s *shell) checkRoles(roles []string) error {
	for _, r := range roles {
		if of, known := sidecar.RoleOf(r); known && of.OfNode() {
			return fmt.Errorf("%s is needed on each node, beside the driver there: start 'volplane-node-sidecars "+
				"--controllers=%s' in the driver's DaemonSet, and take it from --controllers here", r, r)
		}
		if of, known := sidecar.RoleOf(r); known && of == sidecar.SnapshotMetadata {
			return fmt.Errorf("%s works in each replica, and not in the leader alone: start 'volplane %s' in a container of "+
				"its own, and take it from --controllers here", r, r)
		}
		if !slices.Contains(s.programs.DriverControllers, r) {
			return fmt.Errorf("unknown controller %q: use %s", r,
				strings.Join(s.programs.DriverControllers, ", "))
		}
	}
	if len(roles) == 0 {
		return fmt.Errorf("--controllers is empty: use some of %s", strings.Join(s.programs.DriverControllers, ", "))
	}
	return nil
}
