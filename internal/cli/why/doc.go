// Package why has the verbs that explain what waits and why: of one object, of all, of what would be created, from the
// API or from a file. It is also a plugin of kubectl, for any system that kubectl has.
package why

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the verbs that explain.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{whyCommand(s), snapshotStateCommand(s)}
}
