// Package get has the verbs that show objects: in tables of the server, in other formats, together with what they wait
// for, and what has happened to them.
package get

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the verbs that show objects.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{getCommand(s), describeCommand(s), eventsCommand(s)}
}
