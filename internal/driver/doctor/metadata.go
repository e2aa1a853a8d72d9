package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func metadataChecks() []check {
	return []check{{
		"snapshot-metadata", func(x *exam) bool { return x.snaps() && x.mounts() && x.hasMetadata() },
		(*exam).checkMetadata,
		"name all blocks that were written or have changed, in order and once, from starting_offset to the end",
	}}
}

func (x *exam) hasMetadata() bool {
	return x.controller != nil && x.controller.d.Plugin.SnapshotMetadata
}

// blocks is one answer of a stream.
type blocks interface {
	GetBlockMetadataType() csipb.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csipb.BlockMetadata
}

// mostAnswers is how many answers a stream may have.
const mostAnswers = 100_000

// reading judges the answers of a stream one by one.
type reading struct {
	// from and most are of the request: where it begins, and how many blocks an answer may have; 0 is no limit.
	from int64
	most int
	// answers counts the answers, of which first is the first one; size is that of all blocks if it must be the same.
	answers int
	first   blocks
	size    int64
	// end is the end of the last block, and covered up to where the blocks leave nothing out.
	end, covered int64
	problem      string
}

func newReading(from int64, most int32) *reading {
	return &reading{from: from, most: int(most), covered: from}
}

func (r *reading) see(a blocks) {
	if r.answers++; r.answers == 1 {
		r.first = a
	}
	switch all := a.GetBlockMetadata(); {
	case r.answers > mostAnswers:
		r.problem = "the stream does not end"
	case a.GetBlockMetadataType() == csipb.BlockMetadataType_UNKNOWN:
		r.problem = "block_metadata_type is UNKNOWN"
	case a.GetBlockMetadataType() != r.first.GetBlockMetadataType(),
		a.GetVolumeCapacityBytes() != r.first.GetVolumeCapacityBytes():
		r.problem = "block_metadata_type or volume_capacity_bytes differs between two answers of a stream"
	case r.most > 0 && len(all) > r.most:
		r.problem = fmt.Sprintf("an answer has %d blocks, max_results is %d", len(all), r.most)
	default:
		for _, b := range all {
			if r.problem == "" {
				r.problem = r.add(b)
			}
		}
	}
}

// add returns what is wrong with a block, or "".
func (r *reading) add(b *csipb.BlockMetadata) string {
	from, size := b.GetByteOffset(), b.GetSizeBytes()
	switch {
	case size == 0:
		return fmt.Sprintf("the block at %d has no bytes", from)
	case from < r.end:
		return fmt.Sprintf("a block begins at %d, and the one before it ends at %d", from, r.end)
	case from+size <= r.from:
		return fmt.Sprintf("a block ends at %d, starting_offset is %d", from+size, r.from)
	case from+size > r.first.GetVolumeCapacityBytes() || from+size < 0:
		return fmt.Sprintf("a block ends at %d, volume_capacity_bytes is %d", from+size, r.first.GetVolumeCapacityBytes())
	case r.size != 0 && r.size != size && r.first.GetBlockMetadataType() == csipb.BlockMetadataType_FIXED_LENGTH:
		return fmt.Sprintf("FIXED_LENGTH blocks have %d and %d bytes", r.size, size)
	}
	if from <= r.covered {
		r.covered = from + size
	}
	r.end, r.size = from+size, size
	return ""
}

// lacks says that the blocks leave out something of what was written, which is at the beginning of the volume.
func (r *reading) lacks(written int64) string {
	if r.problem == "" && r.covered < written {
		return fmt.Sprintf("what was written at %d is in no block", r.covered)
	}
	return r.problem
}

// whole returns a call that reads a stream to its end, or until something is wrong with it.
func whole[Q any, A blocks, S interface{ Recv() (A, error) }](
	r *reading, open func(context.Context, Q, ...grpc.CallOption) (S, error),
) func(context.Context, Q, ...grpc.CallOption) (*reading, error) {
	return func(ctx context.Context, request Q, opts ...grpc.CallOption) (*reading, error) {
		stream, err := open(ctx, request, opts...)
		for err == nil && r.problem == "" {
			var answer A
			if answer, err = stream.Recv(); err == nil {
				r.see(answer)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return r, err
	}
}

// allocated and delta read the blocks that a snapshot has, and those in which it differs from one before it.
func (x *exam) allocated(ctx context.Context, r *csipb.GetMetadataAllocatedRequest) (*reading, error) {
	read := newReading(r.GetStartingOffset(), r.GetMaxResults())
	return do(ctx, x, whole(read, x.controller.d.SnapshotMetadataClient().GetMetadataAllocated), r)
}

func (x *exam) delta(ctx context.Context, r *csipb.GetMetadataDeltaRequest) (*reading, error) {
	read := newReading(r.GetStartingOffset(), r.GetMaxResults())
	return do(ctx, x, whole(read, x.controller.d.SnapshotMetadataClient().GetMetadataDelta), r)
}

func (x *exam) asksAllocated(r *csipb.GetMetadataAllocatedRequest) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := x.allocated(ctx, r)
		return err
	}
}

func (x *exam) asksDelta(r *csipb.GetMetadataDeltaRequest) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := x.delta(ctx, r)
		return err
	}
}

// checkMetadata writes to a block volume, takes a snapshot, and does both again.
func (x *exam) checkMetadata(ctx context.Context) verdict {
	v := x.volume()
	v.capability = csi.Capability(v.capability.GetAccessMode().GetMode(), true, "", nil)
	var ids []string
	for _, word := range []string{"base", "target"} {
		if err := v.to(ctx, published); err != nil {
			return unable(err)
		}
		if err := errors.Join(v.write(v.targets[0], word), v.to(ctx, created)); err != nil {
			return unable(err)
		}
		s, err := v.snapshot(ctx, x.newName())
		if err != nil {
			return unable(failure{"CreateSnapshot", err})
		}
		ids = append(ids, s.GetSnapshotId())
	}
	result := x.metadataVerdict(ctx, v, ids[0], ids[1])
	for _, id := range ids {
		if err := x.removeSnapshot(ctx, id); err != nil {
			return unable(failure{"DeleteSnapshot", err})
		}
	}
	if err := v.to(ctx, none); err != nil {
		return unable(err)
	}
	return result
}

func (x *exam) metadataVerdict(ctx context.Context, v *vol, base, target string) verdict {
	var capacity int64
	for _, at := range []struct {
		from int64
		most int32
	}{{0, 0}, {dataSize / 2, 1}} {
		has, err := x.allocated(ctx, &csipb.GetMetadataAllocatedRequest{
			SnapshotId: base, StartingOffset: at.from, MaxResults: at.most, Secrets: x.Secrets,
		})
		if err != nil {
			return wrong("GetMetadataAllocated: %s", csi.Describe(err))
		}
		if text := has.lacks(dataSize); text != "" {
			return wrong("GetMetadataAllocated from %d: %s", at.from, text)
		}
		if capacity = has.first.GetVolumeCapacityBytes(); capacity < v.size {
			return wrong("volume_capacity_bytes is %d, the volume was made with %d", capacity, v.size)
		}
		changed, err := x.delta(ctx, &csipb.GetMetadataDeltaRequest{
			BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: at.from, MaxResults: at.most, Secrets: x.Secrets,
		})
		if csi.Code(err) == codes.FailedPrecondition {
			return doubtful("the storage does not keep what has changed: callers copy all that is allocated: %s",
				csi.Describe(err))
		}
		if err != nil {
			return wrong("GetMetadataDelta: %s", csi.Describe(err))
		}
		if text := changed.lacks(dataSize); text != "" {
			return wrong("GetMetadataDelta from %d: %s", at.from, text)
		}
	}
	return oneOf(answers(ctx, x.oddMetadata(base, target, capacity)),
		"the blocks that were written and have changed are named, in order and once")
}

// oddMetadata returns questions that must be refused.
func (x *exam) oddMetadata(base, target string, capacity int64) []question {
	missing, unknown, outside := []codes.Code{codes.InvalidArgument}, []codes.Code{codes.NotFound},
		[]codes.Code{codes.OutOfRange}
	return []question{
		{
			"GetMetadataAllocated without a snapshot_id",
			x.asksAllocated(&csipb.GetMetadataAllocatedRequest{Secrets: x.Secrets}), missing,
		},
		{
			"GetMetadataAllocated of an unknown snapshot",
			x.asksAllocated(&csipb.GetMetadataAllocatedRequest{SnapshotId: base + "0", Secrets: x.Secrets}), unknown,
		},
		{
			"GetMetadataAllocated from beyond the volume", x.asksAllocated(&csipb.GetMetadataAllocatedRequest{
				SnapshotId: base, StartingOffset: capacity + 1, Secrets: x.Secrets,
			}), outside,
		},
		{
			"GetMetadataDelta without a target_snapshot_id",
			x.asksDelta(&csipb.GetMetadataDeltaRequest{BaseSnapshotId: base, Secrets: x.Secrets}), missing,
		},
		{
			"GetMetadataDelta from an unknown snapshot", x.asksDelta(&csipb.GetMetadataDeltaRequest{
				BaseSnapshotId: base + "0", TargetSnapshotId: target, Secrets: x.Secrets,
			}), unknown,
		},
		{
			"GetMetadataDelta from beyond the volume", x.asksDelta(&csipb.GetMetadataDeltaRequest{
				BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: capacity + 1, Secrets: x.Secrets,
			}), outside,
		},
	}
}
