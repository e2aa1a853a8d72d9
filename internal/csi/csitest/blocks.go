package csitest

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Blocks answers a call of the snapshot metadata service: it sends answers, which are the same for both calls, and
// returns how the stream ends. It may be called concurrently.
type Blocks func(ctx context.Context, request proto.Message, send func(*csipb.GetMetadataAllocatedResponse) error) error

// OnBlocks makes f answer the calls of the snapshot metadata service from now on. Calls lists them like others.
func (d *Driver) OnBlocks(f Blocks) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks = f
}

// GetMetadataAllocated answers as OnBlocks says.
func (d *Driver) GetMetadataAllocated(
	r *csipb.GetMetadataAllocatedRequest, to csipb.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	return d.stream(to.Context(), "GetMetadataAllocated", r, to.Send)
}

// GetMetadataDelta answers as OnBlocks says.
func (d *Driver) GetMetadataDelta(
	r *csipb.GetMetadataDeltaRequest, to csipb.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	return d.stream(to.Context(), "GetMetadataDelta", r, func(a *csipb.GetMetadataAllocatedResponse) error {
		return to.Send(&csipb.GetMetadataDeltaResponse{
			BlockMetadataType: a.GetBlockMetadataType(), VolumeCapacityBytes: a.GetVolumeCapacityBytes(),
			BlockMetadata: a.GetBlockMetadata(),
		})
	})
}

func (d *Driver) stream(
	ctx context.Context, method string, r proto.Message, send func(*csipb.GetMetadataAllocatedResponse) error,
) error {
	_, leave := d.script.enter(method, "", r)
	defer leave()
	d.mu.Lock()
	f := d.blocks
	d.mu.Unlock()
	if f == nil {
		return status.Errorf(codes.Unimplemented, "%s is not supported", method)
	}
	return f(ctx, r, send)
}
