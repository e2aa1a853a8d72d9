// Package volume has the verbs about volumes: they create, mount, resize and snapshot claims, and find and adopt
// volumes that no object refers to.
package volume

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the verbs about volumes.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{
		createCommand(s), mountCommand(s), umountCommand(s), mountsCommand(s), resizeCommand(s), snapshotCommand(s),
		orphansCommand(s), adoptCommand(s),
	}
}
