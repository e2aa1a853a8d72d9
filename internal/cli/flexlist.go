//go:build linux

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/finding"
	"volplane.dev/volplane/internal/flex/install"
)

func (s *shell) flexListCommand() *cobra.Command {
	var f flexFlags
	c := &cobra.Command{
		Use:   "list [NAME ...]",
		Short: "List the drivers of this host",
		Long: `List the drivers of this host with version, state, reason and number of volumes
in use.

The information comes from the bridge that runs on this host. Without a bridge,
the command runs init of each driver and counts its mounted volumes.`,
		Example: `  volplane flex list
  volplane flex list example.com/lofs -o yaml`,
		ValidArgsFunction: s.completeDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.flexList(cmd.Context(), f, args)
		},
	}
	f.register(c)
	return c
}

func (s *shell) flexList(ctx context.Context, f flexFlags, names []string) error {
	if err := f.check(); err != nil {
		return err
	}
	l, err := install.List(ctx, s.flexOptions(f))
	if err != nil {
		return err
	}
	if err := l.Select(names); err != nil {
		return err
	}
	if printed, err := s.printStructured(f.output, l); printed {
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
	return s.printDrivers(l, f.output == "wide")
}

func (s *shell) printDrivers(l install.Listing, wide bool) error {
	w := printers.GetNewTabWriter(s.Out)
	fmt.Fprint(w, "NAME\tVERSION\tSTATE\tREASON\tVOLUMES\tAGE\tCAPABILITIES")
	if wide {
		fmt.Fprint(w, "\tPATH\tMESSAGE")
	}
	fmt.Fprintln(w)
	for _, d := range l.Drivers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s", d.Name, orNone(d.Hash), d.State, d.Reason, d.InUse,
			duration.HumanDuration(time.Since(d.Since)), orNone(d.Can()))
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

func (s *shell) flexLintCommand() *cobra.Command {
	var f flexFlags
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
			return s.flexLint(cmd.Context(), f)
		},
	}
	p := c.Flags()
	p.StringVarP(&f.output, "output", "o", "", "output format: wide, json, yaml")
	p.BoolVar(&f.NoInit, "no-init", false, "do not run the drivers")
	return c
}

func (s *shell) flexLint(ctx context.Context, f flexFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	d, findings, err := install.Lint(ctx, s.flexOptions(f))
	if err != nil {
		return err
	}
	level := finding.Worst(findings)
	printed, err := s.printStructured(f.output, map[string]any{"directory": d, "level": level, "findings": findings})
	if !printed {
		err = printFindings(s.Out, findings, d.Path, f.output == "wide")
	}
	if err == nil && level == finding.Fail {
		err = errProblem
	}
	return err
}
