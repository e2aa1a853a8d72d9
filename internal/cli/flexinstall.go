package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex"
)

func (s *shell) flexInstallCommand() *cobra.Command {
	var f flexFlags
	var watch bool
	c := &cobra.Command{
		Use:   "install NAME FILE|DIR",
		Short: "Install a driver, so that hosts see a whole one at any time",
		Long: `Install a driver from a file. It is looked at and started with init before any
host sees it, and takes its place in one step: a host that starts it at this
moment, and one that starts it after this command was killed, get a whole one.

A directory is installed outside of the plugin directory, because each file in
there costs an init; what is in there starts the file of the driver's name.

With --watch the command stays, and installs the driver again whenever it is
not as it should be, also in place of another version: for a container.`,
		Example: `  volplane flex install example.com/lofs ./lofs
  volplane flex install example.com/lofs /lofs --watch --no-init --dir /exec`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: completeNewDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name, f.Source = args[0], args[1]
			if watch {
				return s.flexKeep(cmd.Context(), f)
			}
			return s.flexDo(cmd.Context(), f, flex.Install)
		},
	}
	f.register(c)
	f.registerSource(c)
	c.Flags().BoolVar(&watch, "watch", false, "stay, and put the driver right whenever it changes")
	return c
}

// registerSource adds the flags of commands that bring a driver.
func (f *flexFlags) registerSource(c *cobra.Command) {
	p := c.Flags()
	p.BoolVar(&f.NoInit, "no-init", false,
		"look at the file only: the driver will run in another root than this, as when a container installs it")
	p.BoolVar(&f.Force, "force", false, "install it although it does not pass the checks")
	p.StringVar(&f.PayloadDir, "payload-dir", "",
		"where directories are installed (default flex-payload beside the plugin directory)")
}

// completeNewDriver offers files after the name.
func completeNewDriver(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

func (s *shell) flexUpgradeCommand() *cobra.Command {
	var f flexFlags
	c := &cobra.Command{
		Use:   "upgrade NAME FILE|DIR",
		Short: "Replace a driver by another version, also while it is in use",
		Long: `Replace a driver by another version, as install puts the first one. Calls that
run go on with the version that they began with. The version before is kept for
'volplane flex rollback'.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: s.completeDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name, f.Source = args[0], args[1]
			return s.flexDo(cmd.Context(), f, flex.Upgrade)
		},
	}
	f.register(c)
	f.registerSource(c)
	return c
}

func (s *shell) flexRollbackCommand() *cobra.Command {
	var f flexFlags
	c := &cobra.Command{
		Use:               "rollback NAME",
		Short:             "Exchange a driver and the version before",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name = args[0]
			return s.flexDo(cmd.Context(), f, flex.Rollback)
		},
	}
	f.register(c)
	c.Flags().BoolVar(&f.NoInit, "no-init", false, "look at the file only, do not start it")
	c.Flags().BoolVar(&f.Force, "force", false, "roll back although that version does not pass the checks")
	return c
}

func (s *shell) flexUninstallCommand() *cobra.Command {
	var f flexFlags
	c := &cobra.Command{
		Use:   "uninstall NAME",
		Short: "Take a driver away, unless its volumes are in use",
		Long: `Take a driver away. While its volumes are mounted on this host that is refused,
because nobody could unmount them; with --force a copy is kept for that. What
other hosts mount is not known here.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: s.completeDriver,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Name = args[0]
			return s.flexDo(cmd.Context(), f, flex.Uninstall)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.PayloadDir, "payload-dir", "",
		"where its directory was installed (default flex-payload beside the plugin directory)")
	c.Flags().BoolVar(&f.Force, "force", false, "take it away although its volumes are in use")
	return c
}

// flexDo does something with one driver and prints what was done.
func (s *shell) flexDo(
	ctx context.Context, f flexFlags, do func(context.Context, flex.Options) (flex.Report, error),
) error {
	if err := f.check(); err != nil {
		return err
	}
	r, err := do(ctx, s.flexOptions(f))
	if err != nil {
		return fmt.Errorf("driver %s: %w", f.Name, err)
	}
	return s.printReport(f, r)
}

func (s *shell) printReport(f flexFlags, r flex.Report) error {
	if printed, err := s.whole(f.output, r); printed {
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
	for _, one := range r.Findings {
		if one.Check == "init" && one.Level != decide.Fail {
			fmt.Fprintf(s.Out, "  init       %s\n", one.Message)
		}
	}
	switch {
	case r.Loaded != nil:
		fmt.Fprintf(s.Out, "  bridge     %s\n", r.Loaded.Message)
	case r.Directory.Host == "kubelet":
		fmt.Fprintln(s.Out, "  kubelet    calls init when it sees the file; it cannot be asked whether it has")
	}
	return printFindings(s.Err, r.Findings, r.Directory.Path, f.output == "wide")
}

// flexKeep installs a driver and stays until it is told to end.
func (s *shell) flexKeep(ctx context.Context, f flexFlags) error {
	log := s.log().With("driver", f.Name)
	err := flex.Keep(ctx, s.flexOptions(f), log, func(r flex.Report) {
		log.Info("driver is in place", "deed", r.Deed, "version", r.Hash, "path", r.Path)
		for _, one := range r.Findings {
			if one.Level != decide.Pass {
				log.Warn("check of the driver", "check", one.Check, "level", string(one.Level), "why", sentence(one))
			}
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("driver %s: %w", f.Name, err)
	}
	return nil
}
