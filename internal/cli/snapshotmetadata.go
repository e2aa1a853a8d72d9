//go:build linux

package cli

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

func (s *shell) snapshotMetadataCommand() *cobra.Command {
	return s.roleCommand(sidecar.SnapshotMetadata, &cobra.Command{
		Use:   "snapshot-metadata",
		Short: "Serve the changed blocks of a driver's snapshots",
		Long: `Serve the changed blocks of a CSI driver's snapshots to backup programs of a
Kubernetes cluster until terminated. This command replaces csi-snapshot-metadata.

Clients find the service by the SnapshotMetadataService that has the driver's
name. They show a token for its audience, and must be allowed to get the
VolumeSnapshot that they ask for. The certificate is read again when its files
change.`,
		Example: `  volplane snapshot-metadata --csi-address /csi/csi.sock \
      --tls-cert /certificates/tls.crt --tls-key /certificates/tls.key`,
	}, func(cmd *cobra.Command, o sidecar.Options) error {
		config, err := s.config()
		if err != nil {
			return err
		}
		limit(config, o)
		return s.snapshotMetadata(cmd.Context(), o.SnapshotMetadata, config)
	})
}

func (s *shell) snapshotMetadata(ctx context.Context, o sidecar.SnapshotMetadataOptions, config *rest.Config) error {
	return s.programs.SnapshotMetadata(ctx, program.SnapshotMetadataOptions{
		SnapshotMetadataOptions: o, Config: config, Version: s.version, Log: s.log(),
	})
}
