package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/sidecar/snapshotmetadata"
	"volplane.dev/volplane/internal/volume"
)

// streamLimit is how long a stream of changed blocks may take, as long as with upstream's default.
const streamLimit = 10 * time.Minute

// ChangedBlocksOptions configure what serves the changed blocks of the drivers that a control plane calls.
type ChangedBlocksOptions struct {
	// Config is the client configuration with the identity of MetadataRole.
	Config *rest.Config
	// Address, host:port, is where the services of the Plane are served, with a certificate of the authority CA, in PEM.
	Address string
	CA      []byte
	// Metrics counts the streams.
	Metrics *observe.Registry
	// Log is the log of the program.
	Log *slog.Logger
}

// ChangedBlocks serves the changed blocks of drivers, and announces that, until ctx ends.
func (p *Plane) ChangedBlocks(ctx context.Context, o ChangedBlocksOptions, drivers *csi.Set) error {
	client, err := kubernetes.NewForConfig(kube.Restrict(o.Config, MetadataRole, metadataRights()))
	if err != nil {
		return fmt.Errorf("client of %s: %w", MetadataRole, err)
	}
	announcement := snapshotmetadata.Announcement{
		Drivers: drivers, Client: client, Log: o.Log, Spec: cluster.SnapshotMetadataServiceSpec{
			Audience: volume.AudienceMetadata, Address: o.Address, CACert: o.CA,
		},
	}
	return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
		{Name: "service of changed blocks", Run: func(ctx context.Context) error {
			p.blocks.Run(ctx, snapshotmetadata.Options{
				Drivers: drivers, Client: client, Audience: volume.AudienceMetadata, Limit: streamLimit,
				Meter: o.Metrics.Stream, Log: o.Log,
			})
			return nil
		}},
		{Name: "announcement of changed blocks", Run: announcement.Run},
	})
}

// metadataRights returns the rights of MetadataRole.
func metadataRights() []kube.Access {
	return slices.Concat(snapshotmetadata.Rights(), snapshotmetadata.AnnouncementRights())
}
