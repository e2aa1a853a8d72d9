package flex

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/workshop/finding"
)

func listCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "list [NAME ...]",
		Short: "List the drivers of this host",
		Long: `List the drivers of this host with version, state, reason and number of volumes
in use.

The information comes from the bridge that runs on this host. Without a bridge,
the command runs init of each driver and counts its mounted volumes.`,
		Example: `  volplane flex list
  volplane flex list example.com/lofs -o yaml`,
		ValidArgsFunction: completeDriver(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return list(cmd.Context(), s, f, args)
		},
	}
	f.register(c)
	return c
}

func list(ctx context.Context, s *shell.Shell, f driverFlags, names []string) error {
	l, err := install.List(ctx, optionsOf(s, f))
	if err != nil {
		return err
	}
	if err := l.Select(names); err != nil {
		return err
	}
	if printed, err := s.PrintStructured(f.output, l); printed {
		return err
	}
	if f.output == "name" {
		for _, d := range l.Drivers {
			fmt.Fprintln(s.Out, "driver/"+d.Name)
		}
		return nil
	}
	if len(l.Drivers) == 0 {
		fmt.Fprintf(s.Err, "No drivers found in %s (%s)\n", l.Directory.Path, l.Directory.Because)
		return nil
	}
	return printDrivers(s, l, f.output == "wide")
}

func printDrivers(s *shell.Shell, l install.Listing, wide bool) error {
	w := printers.GetNewTabWriter(s.Out)
	fmt.Fprint(w, "NAME\tVERSION\tSTATE\tREASON\tVOLUMES\tAGE\tCAPABILITIES")
	if wide {
		fmt.Fprint(w, "\tPATH\tMESSAGE")
	}
	fmt.Fprintln(w)
	for _, d := range l.Drivers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s", d.Name, shell.OrNone(d.Hash), d.State, d.Reason, d.InUse,
			duration.HumanDuration(time.Since(d.Since)), shell.OrNone(d.Can()))
		if wide {
			fmt.Fprintf(w, "\t%s\t%s", d.Path, d.Message)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// The reason why a driver cannot be used is too long for a column.
	for _, d := range l.Drivers {
		if !d.Next.IsZero() && !wide {
			fmt.Fprintf(s.Err, "\n%s. Next: %s.\n", d.Message, d.Next)
		}
	}
	return nil
}

func lintCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "lint [DIR]",
		Short: "Find problems in a plugin directory",
		Long: `Find entries of a plugin directory that make a host refuse a driver, run a file
that is not a driver, or retry forever. Nothing is changed.

Exit codes: 0 no check failed, 1 error, 2 a check failed.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				f.Dir = args[0]
			}
			return lint(cmd.Context(), s, f)
		},
	}
	p := c.Flags()
	p.StringVarP(&f.output, "output", "o", "", "output format: wide, json, yaml")
	p.BoolVar(&f.NoInit, "no-init", false, "do not run the drivers")
	return c
}

func lint(ctx context.Context, s *shell.Shell, f driverFlags) error {
	d, findings, err := install.Lint(ctx, optionsOf(s, f))
	if err != nil {
		return err
	}
	level := finding.Worst(findings)
	printed, err := s.PrintStructured(f.output, map[string]any{"directory": d, "level": level, "findings": findings})
	if !printed {
		err = shell.PrintFindings(s.Out, findings, d.Path, f.output == "wide")
	}
	if err == nil && level == finding.Fail {
		err = shell.ErrProblem
	}
	return err
}
