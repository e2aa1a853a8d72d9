// Package host has the verbs that run for long on a host: the control plane, which is another program, the node agent,
// and what serves claims to programs of the host.
package host

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the programs of a host, and what changes the control plane there.
func Commands(s *shell.Shell) []*cobra.Command {
	return append(planeCommands(s), nodeCommand(s), dockerCommand(s), storageCommand(s))
}
