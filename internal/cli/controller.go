package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/program"
)

func (s *shell) controllerCommand() *cobra.Command {
	var o program.ControllersOptions
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers for a driver in a cluster",
		Long: `Run the controllers for a CSI driver in a Kubernetes cluster until terminated.
They replace csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter and the
snapshot-controller, and use the same leases, so that a sidecar and this command
never work at the same time.

In a Pod, the command uses the Pod's service account.`,
		Example: `  volplane controller --csi-address /run/csi/socket
  volplane controller --controllers provisioner,attacher,resizer,snapshotter
  volplane controller --kubeconfig admin.conf --controllers attacher -v 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.controller(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringSliceVar(&o.Roles, "controllers", []string{"provisioner", "attacher", "resizer"},
		"controllers to run: "+strings.Join(s.programs.DriverControllers, ", "))
	f.StringVar(&o.Socket, "csi-address", "/run/csi/socket", "path of the driver's socket; the driver may start later")
	f.BoolVar(&o.Elects, "leader-election", true, "wait while another process runs the same controllers")
	f.StringVar(&o.Namespace, "leader-election-namespace", "",
		"namespace of the leases and the intents (default the Pod's, or the kubeconfig's)")
	f.DurationVar(&o.Term.Duration, "leader-election-lease-duration", 15*time.Second,
		"how long other processes wait after the leader's last renewal")
	f.DurationVar(&o.Term.Deadline, "leader-election-renew-deadline", 10*time.Second,
		"how long the leader works without being able to renew its leases")
	f.DurationVar(&o.Term.Retry, "leader-election-retry-period", 5*time.Second, "interval between renewals")
	f.DurationVar(&o.ReconcileSync, "reconcile-sync", time.Minute,
		"interval at which the driver is asked what it has attached")
	f.DurationVar(&o.CapacityPoll, "capacity-poll-interval", time.Minute,
		"interval at which the driver is asked for its free capacity")
	f.BoolVar(&o.CapacityForImmediate, "capacity-for-immediate-binding", false,
		"also ask for classes with immediate binding")
	f.StringVar(&o.DummyAttacher, "dummy-attacher", "",
		"mark the attachments of this attacher as attached, without a driver")
	_ = c.RegisterFlagCompletionFunc("controllers",
		cobra.FixedCompletions(s.programs.DriverControllers, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (s *shell) controller(ctx context.Context, o program.ControllersOptions) error {
	if err := s.checkControllers(o); err != nil {
		return err
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	if o.Namespace == "" {
		if o.Namespace, err = s.namespace(); err != nil {
			return err
		}
	}
	o.Config, o.Log = config, s.log()
	return s.programs.Controllers(ctx, o)
}

// checkControllers validates the flags.
func (s *shell) checkControllers(o program.ControllersOptions) error {
	if err := s.checkRoles(o.Roles); err != nil {
		return err
	}
	switch {
	case o.DummyAttacher != "" && !slices.Equal(o.Roles, []string{"attacher"}):
		return fmt.Errorf("--dummy-attacher has no driver, so only the attacher can run: add '--controllers attacher'")
	case o.Elects && (o.Term.Duration <= o.Term.Deadline || o.Term.Deadline <= o.Term.Retry):
		return fmt.Errorf("the lease duration (%v) must be longer than the renew deadline (%v), and that longer than the "+
			"retry period (%v)",
			o.Term.Duration, o.Term.Deadline, o.Term.Retry)
	}
	return nil
}

// checkRoles refuses names that are not those of controllers.
func (s *shell) checkRoles(roles []string) error {
	for _, r := range roles {
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
