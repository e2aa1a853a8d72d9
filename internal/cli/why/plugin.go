package why

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// PluginProgram is the name by which kubectl finds the program for `kubectl why-volume`.
const PluginProgram = "kubectl-why_volume"

// pluginCommand is what its user types.
const pluginCommand = "kubectl why-volume"

// Plugin runs `volplane why` as a plugin of kubectl, with all flags by which kubectl finds a server and a user.
func Plugin(ctx context.Context, args []string, s shell.Streams, version string) int {
	sh := shell.New(ctx, s, version, shell.Programs{})
	return sh.Execute(ctx, whyVolumeCommand(sh), args)
}

// whyVolumeCommand returns the command why as one that stands alone.
func whyVolumeCommand(s *shell.Shell) *cobra.Command {
	c := whyCommand(s)
	typed := strings.NewReplacer("volplane why", pluginCommand, "volplane get", "kubectl get")
	c.Use = strings.Replace(c.Use, "why", "why-volume", 1)
	c.Long, c.Example = typed.Replace(c.Long), typed.Replace(c.Example)
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginCommand}
	c.Version = s.Version
	c.SilenceErrors, c.SilenceUsage = true, true
	c.PersistentPreRunE = s.Begin
	s.Flags.Kubectl = &shell.Kubectl{}
	f := c.Flags()
	s.Flags.Kubectl.Register(f)
	f.IntVarP(&s.Flags.Verbosity, "v", "v", 0, "log verbosity: from 0 (none) to 7 (every request)")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if err != nil && typed.Replace(err.Error()) != err.Error() {
			// Its text names the command that the user has typed.
			err = errors.New(typed.Replace(err.Error()))
		}
		return err
	}
	return c
}
