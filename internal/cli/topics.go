//go:build linux

package cli

import "github.com/spf13/cobra"

// volumeCommands returns the verbs about volumes.
func (s *shell) volumeCommands() []*cobra.Command {
	return []*cobra.Command{
		s.createCommand(), s.mountCommand(), s.umountCommand(), s.mountsCommand(), s.resizeCommand(), s.snapshotCommand(),
		s.orphansCommand(), s.adoptCommand(),
	}
}

// getCommands returns the verbs that show objects.
func (s *shell) getCommands() []*cobra.Command {
	return []*cobra.Command{s.getCommand(), s.describeCommand(), s.eventsCommand()}
}

// applyCommands returns the verbs that change objects.
func (s *shell) applyCommands() []*cobra.Command {
	return []*cobra.Command{s.applyCommand(), s.deleteCommand()}
}

// whyCommands returns the verbs that explain.
func (s *shell) whyCommands() []*cobra.Command {
	return []*cobra.Command{s.whyCommand(), s.snapshotStateCommand()}
}

// statusCommands returns the verbs about all together.
func (s *shell) statusCommands() []*cobra.Command {
	return []*cobra.Command{s.statusCommand(), s.pageCommand()}
}

// hostCommands returns the programs of a host, and what changes the control plane there.
func (s *shell) hostCommands() []*cobra.Command {
	return append(s.planeCommands(), s.nodeCommand(), s.dockerCommand(), s.storageCommand())
}

// clusterCommands returns the programs beside a driver.
func (s *shell) clusterCommands() []*cobra.Command {
	return []*cobra.Command{
		s.controllerCommand(), s.snapshotMetadataCommand(), s.registrarCommand(), s.livenessCommand(),
	}
}
