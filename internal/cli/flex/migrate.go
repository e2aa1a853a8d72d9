package flex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/flex/migrate"
)

func migrateCommand(s *shell.Shell) *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Move volumes from the in-tree FlexVolume plugin to the bridge, and back",
		Long: `Move volumes from the in-tree FlexVolume plugin to the bridge, and back.

The source of a PersistentVolume is immutable, so the command saves the volume
and its claim in the cluster, deletes them, and creates them again under their
old names. It does not touch the data, and never deletes a volume with its
driver. It refuses a volume that a Pod uses: scale its owner to 0, migrate, and
scale up again.`,
		Example: `  volplane flex migrate plan               # which volumes can be moved
  volplane flex migrate run pv-data         # move one
  volplane flex migrate run --all           # move all that no Pod uses
  volplane flex migrate status              # unfinished moves, and what they wait for
  volplane flex migrate undo pv-data        # restore the old objects`,
	}
	c.AddCommand(migratePlanCommand(s), migrateRunCommand(s), migrateUndoCommand(s), migrateStatusCommand(s))
	return c
}

func migratePlanCommand(s *shell.Shell) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "plan [VOLUME ...]",
		Short: "Show which FlexVolumes can be moved, and change nothing",
		Args:  cobra.ArbitraryArgs, ValidArgsFunction: completeVolumes(s),
		RunE: func(cmd *cobra.Command, args []string) error { return migratePlan(cmd.Context(), s, args, output) },
	}
	c.Flags().StringVarP(&output, "output", "o", "", "print the new objects: json or yaml")
	return c
}

func migrateRunCommand(s *shell.Shell) *cobra.Command {
	var all bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "run VOLUME ... | --all",
		Short: "Move volumes to the bridge, or continue an interrupted move",
		Args:  cobra.ArbitraryArgs, ValidArgsFunction: completeVolumes(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("name the volumes to move, or all of them with --all")
			}
			return migrateAll(cmd.Context(), s, args, false, timeout)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "move every FlexVolume that no Pod uses, and complete interrupted moves")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for others at one volume; 0 without limit")
	return c
}

func migrateUndoCommand(s *shell.Shell) *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "undo VOLUME ...",
		Short: "Turn volumes back into FlexVolumes",
		Args:  cobra.MinimumNArgs(1), ValidArgsFunction: completeVolumes(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return migrateAll(cmd.Context(), s, args, true, timeout)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for others at one volume; 0 without limit")
	return c
}

func migrateStatusCommand(s *shell.Shell) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show unfinished moves, and what they wait for",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return migrateStatus(cmd.Context(), s) },
	}
}

// volumes returns names, or the names of all FlexVolumes of the cluster if
// names is empty.
func volumes(ctx context.Context, client kubernetes.Interface, names []string) ([]string, error) {
	if len(names) > 0 {
		return names, nil
	}
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.FlexVolume != nil {
			names = append(names, list.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// allToMove returns the FlexVolumes of the cluster, and the volumes whose move was
// interrupted.
func allToMove(ctx context.Context, client kubernetes.Interface, m *migrate.Migration) ([]string, error) {
	names, err := volumes(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	half, err := m.Unfinished(ctx)
	names = append(names, half...)
	slices.Sort(names)
	return slices.Compact(names), err
}

func migratePlan(ctx context.Context, s *shell.Shell, names []string, output string) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	if names, err = volumes(ctx, client, names); err != nil {
		return err
	}
	m := &migrate.Migration{Client: client}
	if output != "" {
		return migrateObjects(ctx, s, m, names, output)
	}
	if len(names) == 0 {
		fmt.Fprintln(s.Out, "No volume of this cluster is a FlexVolume.")
		return nil
	}
	w := tabwriter.NewWriter(s.Out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tCLAIM\tFLEX-DRIVER\tCSI-DRIVER\tMOVES\tREASON")
	for _, name := range names {
		p, err := m.Plan(ctx, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, shell.OrNone(p.Claim), shell.OrNone(p.From), shell.OrNone(p.To),
			yesOrNo(p.Step.Verb != decide.Refuse && p.Step.Verb != decide.Wait), p.Step.Because.Message)
	}
	return w.Flush()
}

// migrateObjects prints the new objects, and returns an error for each volume that
// cannot be moved.
func migrateObjects(ctx context.Context, s *shell.Shell, m *migrate.Migration, names []string, output string) error {
	p, err := shell.Printer(output)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		plan, err := m.Plan(ctx, name)
		if err != nil {
			return err
		}
		if plan.Volume == nil {
			failed = append(failed, errors.New(plan.Step.Because.Message))
			continue
		}
		objects := []runtime.Object{plan.Volume}
		if plan.MovedClaim != nil {
			objects = append(objects, plan.MovedClaim)
		}
		for _, o := range objects {
			if err := p.PrintObj(o, s.Out); err != nil {
				return err
			}
		}
	}
	return errors.Join(failed...)
}

// migrateAll moves volumes one after the other. A volume that cannot be moved does
// not block the others.
func migrateAll(ctx context.Context, s *shell.Shell, names []string, back bool, timeout time.Duration) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	m := &migrate.Migration{Client: client, Report: func(pv string, step decide.Step) {
		if step.Verb != decide.Refuse {
			fmt.Fprintf(s.Out, "%s: %s\n", pv, step.Because.Message)
		}
	}}
	if len(names) == 0 {
		if names, err = allToMove(ctx, client, m); err != nil {
			return err
		}
	}
	var failed []error
	for _, name := range names {
		one, cancel := shell.WithTimeout(ctx, timeout)
		_, err := m.Run(one, name, back)
		cancel()
		if ctx.Err() != nil {
			return fmt.Errorf("volume %s: the move is interrupted; see 'volplane flex migrate status', and "+
				"continue with run or undo: %w",
				name, ctx.Err())
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("pv/%s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func migrateStatus(ctx context.Context, s *shell.Shell) error {
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	begun, err := (&migrate.Migration{Client: client}).Begun(ctx)
	if err != nil {
		return err
	}
	if len(begun) == 0 {
		fmt.Fprintln(s.Out, "No volume was moved.")
		return nil
	}
	w := tabwriter.NewWriter(s.Out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "VOLUME\tCLAIM\tDIRECTION\tNEXT\tREASON")
	for _, b := range begun {
		direction := "to " + b.To
		if b.Back {
			direction = "back to " + b.From
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", b.Name, shell.OrNone(b.Claim), direction, b.Step.Verb, b.Step.Because.Message)
	}
	return w.Flush()
}

func completeVolumes(s *shell.Shell) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		client, _, err := s.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names, err := volumes(cmd.Context(), client, nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
