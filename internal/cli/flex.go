//go:build linux

package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/finding"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/program"
)

// defaultFlexRoot is the default root directory of a bridge.
const defaultFlexRoot = "/var/lib/volplane-flex"

func (s *shell) flexCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "flex",
		Short: "Install, list and test FlexVolume drivers",
		Long: `Install, list and test FlexVolume drivers: executables that are run once for
each operation to attach or mount a volume.

A driver example.com/lofs is the file example.com~lofs/lofs in the plugin
directory. The default plugin directory is the one that is in use on this
machine: volplane's, or else the kubelet's.`,
		Example: `  volplane flex init example.com/files      # write a driver to start from, and its test
  volplane flex install example.com/files files/files
  volplane flex list`,
		Args: subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(s.flexListCommand(), s.flexInstallCommand(), s.flexUpgradeCommand(), s.flexRollbackCommand(),
		s.flexUninstallCommand(), s.flexLintCommand(), s.flexDoctorCommand(), s.flexInitCommand(), s.flexManifestCommand(),
		s.flexPolicyCommand(), s.flexBridgeCommand(), s.flexMigrateCommand())
	return c
}

// flexFlags are the flags of several commands about drivers.
type flexFlags struct {
	flex.Options
	output string
}

func (f *flexFlags) register(c *cobra.Command) {
	p := c.Flags()
	p.StringVar(&f.Dir, "dir", "", "plugin directory (default the one in use on this machine)")
	p.StringVar(&f.RootDir, "root-dir", "", "root directory of the bridge on this machine (default that of the "+
		"bridge that uses the plugin directory, else "+defaultFlexRoot+")")
	p.StringVarP(&f.output, "output", "o", "", "output format: wide, name, json, yaml")
	_ = c.MarkFlagDirname("dir")
	_ = c.MarkFlagDirname("root-dir")
}

// flexOptions returns the options with the data directory of the control plane.
func (s *shell) flexOptions(f flexFlags) flex.Options {
	o := f.Options
	o.DataDir, o.Named = s.flags.dataDir, s.flags.named() || os.Getenv(program.DataDirVariable) != ""
	if abs, err := filepath.Abs(o.DataDir); err == nil {
		o.DataDir = abs
	}
	return o
}

// check refuses unknown output formats.
func (f *flexFlags) check() error { return knownOutput(f.output, "wide", "name", "json", "yaml") }

// printStructured prints a value as JSON or YAML if the output format is one of
// these, and says whether it did.
func (s *shell) printStructured(output string, v any) (printed bool, err error) {
	if output != "json" && output != "yaml" {
		return false, nil
	}
	return true, s.printValue(v, output)
}

// completeDriver offers the installed drivers as the first argument.
func (s *shell) completeDriver(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	dir, _ := c.Flags().GetString("dir")
	root, _ := c.Flags().GetString("root-dir")
	l, err := flex.List(c.Context(), s.flexOptions(flexFlags{Options: flex.Options{Dir: dir, RootDir: root}}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, d := range l.Drivers {
		names = append(names, d.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printFindings prints the findings of checks; with wide also those without a
// problem. Paths below dir are printed relative to it; if no finding has a path,
// the table has no column for it.
func printFindings(out io.Writer, all []finding.Finding, dir string, wide bool) error {
	shown := slices.DeleteFunc(slices.Clone(all), func(f finding.Finding) bool { return f.Level == finding.Pass && !wide })
	paths := slices.ContainsFunc(shown, func(f finding.Finding) bool { return f.Path != "" })
	w := printers.GetNewTabWriter(out)
	row := func(level, check, path, message string) {
		if paths {
			check += "\t" + path
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", level, check, message)
	}
	if len(shown) > 0 {
		row("LEVEL", "CHECK", "PATH", "MESSAGE")
	}
	for _, f := range shown {
		path := f.Path
		if below, found := strings.CutPrefix(path, dir+"/"); found && dir != "" {
			path = below
		}
		row(string(f.Level), f.Check, orNone(path), sentence(f))
	}
	return w.Flush()
}

// sentence returns the message of a finding and what to do about it.
func sentence(f finding.Finding) string {
	if f.Next == "" {
		return f.Message
	}
	return f.Message + "; " + f.Next
}
