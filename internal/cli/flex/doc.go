// Package flex has the verbs about FlexVolume drivers: they install, list and test them, serve them as CSI drivers, and
// move their volumes.
package flex

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Command returns the command 'flex' with its verbs.
func Command(s *shell.Shell) *cobra.Command {
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
		Args: shell.Subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(listCommand(s), installCommand(s), upgradeCommand(s), rollbackCommand(s),
		uninstallCommand(s), lintCommand(s), doctorCommand(s), initCommand(s), manifestCommand(s),
		policyCommand(s), bridgeCommand(s), migrateCommand(s))
	return c
}
