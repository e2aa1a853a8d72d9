// Package cluster has the verbs for drivers in a Kubernetes cluster: the programs beside a driver, under their own
// names and under those of upstream's sidecars, and the manifests with which they run.
package cluster

import (
	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
)

// Commands returns the programs beside a driver.
func Commands(s *shell.Shell) []*cobra.Command {
	return []*cobra.Command{
		controllerCommand(s), snapshotMetadataCommand(s), registrarCommand(s), livenessCommand(s),
	}
}
