package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex"
)

// defaultFlexRoot is the root directory of a bridge unless it is told otherwise.
const defaultFlexRoot = "/var/lib/volplane-flex"

func (s *shell) flexCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "flex",
		Short: "Install, list and try FlexVolume drivers: volumes by scripts",
		Long: `Install, list and try FlexVolume drivers: executables that attach and mount
volumes, one operation for each start.

A driver example.com/lofs is the file example.com~lofs/lofs in the plugin
directory. Without --dir that is the directory in which the host of this
machine looks: volplane's own, or else the kubelet's.`,
		Example: `  volplane flex init example.com/files      # a driver to begin with, and its test
  volplane flex install example.com/files files/files
  volplane flex list`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(s.flexListCommand(), s.flexInstallCommand(), s.flexUpgradeCommand(), s.flexRollbackCommand(),
		s.flexUninstallCommand(), s.flexLintCommand(), s.flexDoctorCommand(), s.flexInitCommand(), s.flexManifestCommand(),
		s.flexBridgeCommand(), s.flexMigrateCommand())
	return c
}

// flexFlags are what several commands about drivers take.
type flexFlags struct {
	flex.Options
	output string
}

func (f *flexFlags) register(c *cobra.Command) {
	p := c.Flags()
	p.StringVar(&f.Dir, "dir", "", "plugin directory (default the one in which the host of this machine looks)")
	p.StringVar(&f.RootDir, "root-dir", "", "root directory of the bridge that may run here (default that of the one "+
		"that looks in the plugin directory, else "+defaultFlexRoot+")")
	p.StringVarP(&f.output, "output", "o", "", "form of the output: wide, name, json, yaml")
	_ = c.MarkFlagDirname("dir")
	_ = c.MarkFlagDirname("root-dir")
	_ = c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"wide", "name", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// flexOptions are the options, and which control plane is meant.
func (s *shell) flexOptions(f flexFlags) flex.Options {
	o := f.Options
	o.DataDir = s.flags.dataDir
	return o
}

// check refuses forms of output that there are not.
func (f *flexFlags) check() error {
	_, err := printer(f.output)
	return err
}

// whole prints a value if the output is to be one.
func (s *shell) whole(output string, v any) (printed bool, err error) {
	if output != "json" && output != "yaml" {
		return false, nil
	}
	return true, s.printValue(v, output)
}

// completeDriver offers the drivers that are installed as the first argument.
func (s *shell) completeDriver(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	dir, _ := c.Flags().GetString("dir")
	root, _ := c.Flags().GetString("root-dir")
	l, err := flex.List(c.Context(), flex.Options{Dir: dir, RootDir: root, DataDir: s.flags.dataDir})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, d := range l.Drivers {
		names = append(names, d.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printFindings prints what checks found; what is well only when all is asked
// for. Paths below dir are told as they are in there; where there are none, there
// is no column for them.
func printFindings(out io.Writer, all []decide.Finding, dir string, wide bool) error {
	shown := slices.DeleteFunc(slices.Clone(all), func(f decide.Finding) bool { return f.Level == decide.Pass && !wide })
	paths := slices.ContainsFunc(shown, func(f decide.Finding) bool { return f.Path != "" })
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

// sentence returns what a check found and what to do about it.
func sentence(f decide.Finding) string {
	if f.Next == "" {
		return f.Message
	}
	return f.Message + "; " + f.Next
}
