// Package driver has the verbs about CSI drivers of this host: they add, list and remove them, show, plant, record and
// replay their calls, and test them.
package driver

import (
	"cmp"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/process/options"
)

// Command returns the command 'driver' with its verbs.
func Command(s *shell.Shell) *cobra.Command {
	var id, root, pool string
	local := &cobra.Command{
		Use:   "local",
		Short: "Run the bundled driver, which stores volumes in files",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := s.RootDir(root)
			if err != nil {
				return err
			}
			pool, err := s.Path(pool, "pool")
			if err != nil {
				return err
			}
			id = cmp.Or(id, noderoot.NameOf(root), options.HostName())
			o := options.DriverOptions{NodeID: id, RootDir: root, PoolDir: pool, Log: s.Log()}
			return s.Programs.LocalDriver(cmd.Context(), o)
		},
	}
	f := local.Flags()
	f.StringVar(&id, "node-id", "", "name of the node (default that of the agent at --root-dir, else the host's)")
	f.StringVar(&root, "root-dir", "", "root directory of the node agent, or the kubelet's (default <data-dir>/node)")
	f.StringVar(&pool, "pool", "", "directory for the volumes (default <data-dir>/pool)")
	c := &cobra.Command{
		Use:   "driver",
		Short: "Run and test CSI drivers on this host, and watch them",
		Long: `Run CSI drivers on this host, and watch them. Each driver has a
file in <data-dir>/drivers.d, which these commands write, or which you write
yourself.`,
		Args: shell.Subcommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(local, addCommand(s), importCommand(s), listCommand(s), logsCommand(s),
		restartCommand(s), removeCommand(s), delegateCommand(s), doctorCommand(s),
		initCommand(s), traceCommand(s), faultsCommand(s), callCommand(s),
		recordCommand(s), replayCommand(s))
	return c
}
