package flex

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/process/options"
)

// driverFlags are the flags of several commands about drivers.
type driverFlags struct {
	install.Options
	output string
}

func (f *driverFlags) register(c *cobra.Command) {
	p := c.Flags()
	p.StringVar(&f.Dir, "dir", "", "plugin directory (default the one in use on this machine)")
	p.StringVar(&f.RootDir, "root-dir", "", "root directory of the bridge on this machine (default that of the "+
		"bridge that uses the plugin directory, else "+shell.FlexRoot+")")
	p.StringVarP(&f.output, "output", "o", "", "output format: wide, name, json, yaml")
	_ = c.MarkFlagDirname("dir")
	_ = c.MarkFlagDirname("root-dir")
}

// optionsOf returns the options with the data directory of the control plane.
func optionsOf(s *shell.Shell, f driverFlags) install.Options {
	o := f.Options
	o.DataDir, o.Named = s.Flags.DataDir, s.Flags.Named() || os.Getenv(options.DataDirVariable) != ""
	if abs, err := filepath.Abs(o.DataDir); err == nil {
		o.DataDir = abs
	}
	return o
}

// completeDriver offers the installed drivers as the first argument.
func completeDriver(s *shell.Shell) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		dir, _ := c.Flags().GetString("dir")
		root, _ := c.Flags().GetString("root-dir")
		l, err := install.List(c.Context(), optionsOf(s, driverFlags{Options: install.Options{Dir: dir, RootDir: root}}))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, d := range l.Drivers {
			names = append(names, d.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
