package snapshotmetadata

import (
	"context"
	"errors"
	"io"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
)

const (
	// mostBlocks is how many blocks an answer of the driver may have.
	mostBlocks = 4096
	// blockSize is the maximum size of a block, and answerSize that of the rest of an answer, in bytes.
	blockSize, answerSize = 32, 1 << 10
)

// blocksFor returns the number of blocks per answer to request from the driver for a client that requests n, where 0
// leaves it to the server.
func blocksFor(most int32) int32 {
	if most == 0 {
		return mostBlocks
	}
	return min(most, mostBlocks)
}

// GetMetadataAllocated streams the blocks that a snapshot has.
func (s *server) GetMetadataAllocated(
	r *api.GetMetadataAllocatedRequest, to api.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	a := ask{
		Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Snapshot: r.GetSnapshotName(),
		From: r.GetStartingOffset(), Most: r.GetMaxResults(),
	}
	return s.serve(to.Context(), "MetadataAllocated", a, func(ctx context.Context, t target) error {
		most := blocksFor(a.Most)
		from, err := t.driver.SnapshotMetadataClient().GetMetadataAllocated(ctx, &csipb.GetMetadataAllocatedRequest{
			SnapshotId: t.handle, StartingOffset: a.From, MaxResults: most, Secrets: t.secrets,
		}, sizeOf(most))
		if err != nil {
			return ofDriver(t.driver, err)
		}
		return relay(t.driver, csi.NewBlockOrder(a.From, most), from.Recv, func(b *csipb.GetMetadataAllocatedResponse) error {
			return to.Send(&api.GetMetadataAllocatedResponse{
				BlockMetadataType:   api.BlockMetadataType(b.GetBlockMetadataType()),
				VolumeCapacityBytes: b.GetVolumeCapacityBytes(), BlockMetadata: blocksOf(b),
			})
		})
	})
}

// GetMetadataDelta streams the blocks in which a snapshot differs from an earlier one.
func (s *server) GetMetadataDelta(
	r *api.GetMetadataDeltaRequest, to api.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	a := ask{
		Token: r.GetSecurityToken(), Namespace: r.GetNamespace(), Snapshot: r.GetTargetSnapshotName(),
		From: r.GetStartingOffset(), Most: r.GetMaxResults(), Delta: true, Base: r.GetBaseSnapshotId(),
	}
	return s.serve(to.Context(), "MetadataDelta", a, func(ctx context.Context, t target) error {
		most := blocksFor(a.Most)
		from, err := t.driver.SnapshotMetadataClient().GetMetadataDelta(ctx, &csipb.GetMetadataDeltaRequest{
			BaseSnapshotId: a.Base, TargetSnapshotId: t.handle, StartingOffset: a.From, MaxResults: most, Secrets: t.secrets,
		}, sizeOf(most))
		if err != nil {
			return ofDriver(t.driver, err)
		}
		return relay(t.driver, csi.NewBlockOrder(a.From, most), from.Recv, func(b *csipb.GetMetadataDeltaResponse) error {
			return to.Send(&api.GetMetadataDeltaResponse{
				BlockMetadataType:   api.BlockMetadataType(b.GetBlockMetadataType()),
				VolumeCapacityBytes: b.GetVolumeCapacityBytes(), BlockMetadata: blocksOf(b),
			})
		})
	})
}

// sizeOf limits an answer of the driver to the size of that many blocks.
func sizeOf(most int32) grpc.CallOption {
	return grpc.MaxCallRecvMsgSize(answerSize + int(most)*blockSize)
}

// relay passes on the driver's answers, one by one, as long as they are in order.
func relay[A csi.BlockAnswer](
	d *csi.Driver, order *csi.BlockOrder, recv func() (A, error), send func(A) error,
) error {
	for {
		answer, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ofDriver(d, err)
		}
		if problem := order.Problem(answer); problem != "" {
			return status.Errorf(codes.Internal, "driver %s: its answer breaks the CSI specification: %s", d.Name,
				problem)
		}
		if err := send(answer); err != nil {
			return err
		}
	}
}

// ofDriver returns the driver's error as one for the client. The driver's words have no secrets of its calls any more.
func ofDriver(d *csi.Driver, err error) error {
	code := csi.Code(err)
	if code == codes.Unknown {
		code = codes.Internal
	}
	return status.Errorf(code, "driver %s: %s", d.Name, shown(status.Convert(err).Message()))
}

// blocksOf returns the blocks of an answer as those of the service.
func blocksOf(a csi.BlockAnswer) []*api.BlockMetadata {
	all := a.GetBlockMetadata()
	blocks, out := make([]api.BlockMetadata, len(all)), make([]*api.BlockMetadata, len(all))
	for i, b := range all {
		blocks[i].ByteOffset, blocks[i].SizeBytes = b.GetByteOffset(), b.GetSizeBytes()
		out[i] = &blocks[i]
	}
	return out
}
