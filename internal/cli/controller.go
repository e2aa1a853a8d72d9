package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (s *shell) controllerCommand() *cobra.Command {
	var o ControllersOptions
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run the controllers that belong beside a driver in a cluster",
		Long: `Run the controllers that belong beside a CSI driver in a cluster of Kubernetes,
until it is told to end: they take the place of csi-provisioner, csi-attacher
and csi-resizer, and wait while one of those holds the lease of its work, as
they wait for this one.

The API server is the cluster's own when it runs in a Pod.`,
		Example: `  volplane controller --csi-address /run/csi/socket
  volplane controller --kubeconfig admin.conf --controllers attacher -v 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.controller(cmd.Context(), o) },
	}
	f := c.Flags()
	f.StringSliceVar(&o.Roles, "controllers", []string{"provisioner", "attacher", "resizer"},
		"which of "+strings.Join(s.programs.Beside, ", "))
	f.StringVar(&o.Socket, "csi-address", "/run/csi/socket", "socket of the driver, which may start later")
	f.BoolVar(&o.Elects, "leader-election", true, "work only while no other process does the same work")
	f.StringVar(&o.Namespace, "leader-election-namespace", "",
		"namespace of the leases and the intents (default the Pod's, or the kubeconfig's)")
	f.DurationVar(&o.Duration, "leader-election-lease-duration", 15*time.Second,
		"how long others wait after the leader's last sign")
	f.DurationVar(&o.Deadline, "leader-election-renew-deadline", 10*time.Second,
		"how long the leader works when it cannot give a sign")
	f.DurationVar(&o.Retry, "leader-election-retry-period", 5*time.Second, "pause between signs")
	f.DurationVar(&o.ReconcileSync, "reconcile-sync", time.Minute, "pause between questions what the driver has attached")
	f.DurationVar(&o.CapacityPoll, "capacity-poll-interval", time.Minute,
		"pause between questions how much room the driver has")
	f.BoolVar(&o.CapacityForImmediate, "capacity-for-immediate-binding", false,
		"ask about classes whose claims do not wait for a node, too")
	f.StringVar(&o.DummyAttacher, "dummy-attacher", "", "no driver: mark attachments of this attacher attached")
	_ = c.RegisterFlagCompletionFunc("controllers",
		cobra.FixedCompletions(s.programs.Beside, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (s *shell) controller(ctx context.Context, o ControllersOptions) error {
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

// checkControllers refuses what cannot be meant.
func (s *shell) checkControllers(o ControllersOptions) error {
	if err := s.checkRoles(o.Roles); err != nil {
		return err
	}
	switch {
	case o.DummyAttacher != "" && !slices.Equal(o.Roles, []string{"attacher"}):
		return fmt.Errorf("--dummy-attacher has no driver, which only the attacher can do without: add " +
			"'--controllers attacher'")
	case o.Elects && (o.Duration <= o.Deadline || o.Deadline <= o.Retry):
		return fmt.Errorf("the lease duration (%v) must be longer than the renew deadline (%v), and that longer than the "+
			"retry period (%v)",
			o.Duration, o.Deadline, o.Retry)
	}
	return nil
}

// checkRoles refuses what are no controllers.
func (s *shell) checkRoles(roles []string) error {
	for _, r := range roles {
		if !slices.Contains(s.programs.Beside, r) {
			return fmt.Errorf("no controller that works beside a driver is %q: there are %s", r,
				strings.Join(s.programs.Beside, ", "))
		}
	}
	if len(roles) == 0 {
		return fmt.Errorf("--controllers names none of %s", strings.Join(s.programs.Beside, ", "))
	}
	return nil
}
