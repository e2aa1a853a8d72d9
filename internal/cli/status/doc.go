// Package status has the verbs that show everything in one view: a report, and the link to the page for browsers.
package status

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the verbs about all together.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{statusCommand(s), pageCommand(s)}
}
