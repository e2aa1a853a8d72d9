package flex

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/workshop/finding"
)

func installCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	var watch bool
	c := &cobra.Command{
		Use:   "install NAME FILE|DIR",
		Short: "Install a driver atomically",
		Long: `Install a driver from a file. The command inspects the file, runs its init, and
calls it with an operation that does not exist, before any host can see it, and
then installs it in one step: a host never runs an incomplete driver, even if
this command is killed. It mounts nothing; 'volplane flex doctor' does.

A directory is installed outside the plugin directory, because hosts run init
whenever a file there changes. The plugin directory gets a script that runs the
executable with the driver's name.

With --watch the command keeps running and installs the driver again whenever
its file is changed or missing, also if it is another version. Use this in a
container.`,
		Example: `  volplane flex install example.com/lofs ./lofs
  volplane flex install example.com/lofs /lofs --watch --no-init --dir /exec`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeNewDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name, f.Source = args[0], args[1]
			if watch {
				return keepInstalled(cmd.Context(), s, f)
			}
			return changeDriver(cmd.Context(), s, f, install.Install)
		},
	}
	f.register(c)
	f.registerSource(c)
	c.Flags().BoolVar(&watch, "watch", false, "keep running, and restore the driver whenever it changes")
	return c
}

// registerSource adds the flags of commands that install a file.
func (f *driverFlags) registerSource(c *cobra.Command) {
	p := c.Flags()
	p.BoolVar(&f.NoInit, "no-init", false,
		"do not run the driver's init, for example because a container installs it for its host")
	p.BoolVar(&f.Force, "force", false, "install it even if checks fail")
	p.StringVar(&f.PayloadDir, "payload-dir", "",
		"directory for drivers of several files (default flex-payload beside the plugin directory)")
}

// completeNewDriver offers files after the name.
func completeNewDriver(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

func upgradeCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "upgrade NAME FILE|DIR",
		Short: "Replace a driver by another version",
		Long: `Replace a driver by another version in one step, also while its volumes are in
use. Calls in flight continue with the old version. The old version is kept for
'volplane flex rollback'.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeDriver(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name, f.Source = args[0], args[1]
			return changeDriver(cmd.Context(), s, f, install.Upgrade)
		},
	}
	f.register(c)
	f.registerSource(c)
	return c
}

func rollbackCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:               "rollback NAME",
		Short:             "Exchange a driver with its previous version",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDriver(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name = args[0]
			return changeDriver(cmd.Context(), s, f, install.Rollback)
		},
	}
	f.register(c)
	c.Flags().BoolVar(&f.NoInit, "no-init", false, "do not run the driver's init")
	c.Flags().BoolVar(&f.Force, "force", false, "roll back even if checks of that version fail")
	return c
}

func uninstallCommand(s *shell.Shell) *cobra.Command {
	var f driverFlags
	c := &cobra.Command{
		Use:   "uninstall NAME",
		Short: "Remove a driver",
		Long: `Remove a driver. The command refuses this while volumes of the driver are
mounted on this host, because they could not be unmounted any more; with --force
it keeps a copy for unmounting. It does not check the mounts of other hosts.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeDriver(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name = args[0]
			return changeDriver(cmd.Context(), s, f, install.Uninstall)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.PayloadDir, "payload-dir", "",
		"directory for drivers of several files (default flex-payload beside the plugin directory)")
	c.Flags().BoolVar(&f.Force, "force", false, "remove it even if its volumes are in use")
	return c
}

// changeDriver changes one driver with do and prints the report.
func changeDriver(
	ctx context.Context, s *shell.Shell, f driverFlags, do func(context.Context, install.Options) (install.Report, error),
) error {
	r, err := do(ctx, optionsOf(s, f))
	if err != nil {
		// The findings say who has to act.
		return errors.Join(shell.PrintFindings(s.Err, r.Findings, r.Directory.Path, false),
			fmt.Errorf("driver %s: %w", f.Name, err))
	}
	return printReport(s, f, r)
}

func printReport(s *shell.Shell, f driverFlags, r install.Report) error {
	if printed, err := s.PrintStructured(f.output, r); printed {
		return err
	}
	if f.output == "name" {
		_, err := fmt.Fprintln(s.Out, "driver/"+r.Name)
		return err
	}
	fmt.Fprintf(s.Out, "driver/%s %s\n", r.Name, r.Deed)
	fmt.Fprintf(s.Out, "  directory  %s (%s)\n", r.Directory.Path, r.Directory.Because)
	if r.Hash != "" && r.Deed != "uninstalled" {
		fmt.Fprintf(s.Out, "  version    %s\n", r.Hash)
	}
	if r.Previous != "" {
		fmt.Fprintf(s.Out, "  before     %s\n", r.Previous)
	}
	if r.Payload != "" {
		fmt.Fprintf(s.Out, "  files      %s\n", r.Payload)
	}
	printChecks(s, r)
	switch {
	case r.Loaded != nil:
		fmt.Fprintf(s.Out, "  bridge     %s\n", r.Loaded.Message)
	case r.Directory.Host == "kubelet":
		fmt.Fprintln(s.Out, "  kubelet    runs init when it notices the file; it does not report when")
	}
	return shell.PrintFindings(s.Err, r.Findings, r.Directory.Path, f.output == "wide")
}

// printChecks prints what the driver has answered to the checks of an installation, if it was called.
func printChecks(s *shell.Shell, r install.Report) {
	if r.Capabilities == nil {
		return
	}
	for _, one := range r.Findings {
		if one.Check == "init" && one.Level != finding.Fail {
			fmt.Fprintf(s.Out, "  init       %s\n", one.Message)
		}
	}
	fmt.Fprintf(s.Out, "  checks     %s, without a volume; 'volplane flex doctor %s' also mounts\n",
		finding.Worst(r.Findings), r.Name)
}

// keepInstalled installs a driver and restores it until ctx ends.
func keepInstalled(ctx context.Context, s *shell.Shell, f driverFlags) error {
	log := s.Log().With("driver", f.Name)
	err := install.Keep(ctx, optionsOf(s, f), log, func(r install.Report) {
		log.Info("driver is in place", "deed", r.Deed, "version", r.Hash, "path", r.Path)
		for _, one := range r.Findings {
			if one.Level != finding.Pass {
				log.Warn("check of the driver", "check", one.Check, "level", string(one.Level), "why", shell.Sentence(one))
			}
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("driver %s: %w", f.Name, err)
	}
	return nil
}
