// Package apply has the verbs that create, change and delete objects of any type, and the one that gives up the host of
// a node.
package apply

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the verbs that change objects.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{applyCommand(s), deleteCommand(s)}
}
