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
		"snapshot-metadata", func(x *exam) bool { return x.canSnapshot() && x.mounts() && x.hasMetadata() },
		own((*exam).checkMetadata, none),
		"name all blocks that were written or have changed, in order and once, from starting_offset to the end",
	}}
}

func (x *exam) hasMetadata() bool {
	return x.controller != nil && x.controller.d.Plugin.SnapshotMetadata
}

// mostAnswers is how many answers a stream may have.
const mostAnswers = 100_000

// reading judges the answers of a stream one by one.
type reading struct {
	*csi.BlockOrder
	answers int
	// covered is up to where the blocks leave nothing out.
	covered int64
	problem string
}

func newReading(from int64, most int32) *reading {
	return &reading{BlockOrder: csi.NewBlockOrder(from, most), covered: from}
}

// blockRequest says from where blocks are wanted, and how many at a time.
type blockRequest interface {
	GetStartingOffset() int64
	GetMaxResults() int32
}

func (r *reading) see(a csi.BlockAnswer) {
	if r.problem != "" {
		return
	}
	if r.problem = r.Problem(a); r.problem == "" && r.answers == mostAnswers {
		r.problem = "the stream does not end"
	}
	r.answers++
	for _, b := range a.GetBlockMetadata() {
		if b.GetByteOffset() <= r.covered {
			r.covered = b.GetByteOffset() + b.GetSizeBytes()
		}
	}
}

// lacks says that the blocks leave out something of what was written, which is at the beginning of the volume.
func (r *reading) lacks(written int64) string {
	if r.problem == "" && r.covered < written {
		return fmt.Sprintf("what was written at %d is in no block", r.covered)
	}
	return r.problem
}

// whole returns a call that reads a stream to its end, or until something is wrong with it.
func whole[Q blockRequest, A csi.BlockAnswer, S interface{ Recv() (A, error) }](open rpc[Q, S]) rpc[Q, *reading] {
	return func(ctx context.Context, request Q, opts ...grpc.CallOption) (*reading, error) {
		r := newReading(request.GetStartingOffset(), request.GetMaxResults())
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
func (x *exam) allocated() rpc[*csipb.GetMetadataAllocatedRequest, *reading] {
	return whole(x.controller.d.SnapshotMetadataClient().GetMetadataAllocated)
}

func (x *exam) delta() rpc[*csipb.GetMetadataDeltaRequest, *reading] {
	return whole(x.controller.d.SnapshotMetadataClient().GetMetadataDelta)
}

// checkMetadata writes to a block volume, takes a snapshot, and does both again.
func (x *exam) checkMetadata(ctx context.Context, v *vol) verdict {
	v.capability = csi.Capability(v.capability.GetAccessMode().GetMode(), true, "", nil)
	var ids []string
	for _, word := range []string{"base", "target"} {
		if err := v.fill(ctx, word); err != nil {
			return skipped(err)
		}
		s, err := v.snapshot(ctx, x.newName())
		if err != nil {
			return skipped(failure{"CreateSnapshot", err})
		}
		ids = append(ids, s.GetSnapshotId())
	}
	return x.metadataVerdict(ctx, v, ids[0], ids[1])
}

func (x *exam) metadataVerdict(ctx context.Context, v *vol, base, target string) verdict {
	var capacity int64
	for _, at := range []struct {
		from int64
		most int32
	}{{0, 0}, {dataSize / 2, 1}} {
		has, err := do(ctx, x, x.allocated(), &csipb.GetMetadataAllocatedRequest{
			SnapshotId: base, StartingOffset: at.from, MaxResults: at.most, Secrets: x.Secrets,
		})
		if err != nil {
			return fail("GetMetadataAllocated: %s", csi.Describe(err))
		}
		if text := has.lacks(dataSize); text != "" {
			return fail("GetMetadataAllocated from %d: %s", at.from, text)
		}
		if capacity = has.Capacity; capacity < v.size {
			return fail("volume_capacity_bytes is %d, the volume was created with %d", capacity, v.size)
		}
		changed, err := do(ctx, x, x.delta(), &csipb.GetMetadataDeltaRequest{
			BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: at.from, MaxResults: at.most, Secrets: x.Secrets,
		})
		if csi.Code(err) == codes.FailedPrecondition {
			return warn("the storage does not keep what has changed: callers copy all that is allocated: %s",
				csi.Describe(err))
		}
		if err != nil {
			return fail("GetMetadataDelta: %s", csi.Describe(err))
		}
		if text := changed.lacks(dataSize); text != "" {
			return fail("GetMetadataDelta from %d: %s", at.from, text)
		}
	}
	return oneOf(answers(ctx, x.oddMetadata(base, target, capacity)),
		"the blocks that were written and have changed are named, in order and once")
}

// oddMetadata returns questions that must be refused.
func (x *exam) oddMetadata(base, target string, capacity int64) []question {
	allocated := func(id string, from int64) func(context.Context) error {
		return probe(x, x.allocated(),
			&csipb.GetMetadataAllocatedRequest{SnapshotId: id, StartingOffset: from, Secrets: x.Secrets})
	}
	delta := func(base, target string, from int64) func(context.Context) error {
		return probe(x, x.delta(), &csipb.GetMetadataDeltaRequest{
			BaseSnapshotId: base, TargetSnapshotId: target, StartingOffset: from, Secrets: x.Secrets,
		})
	}
	missing, unknown, outside := []codes.Code{codes.InvalidArgument}, []codes.Code{codes.NotFound},
		[]codes.Code{codes.OutOfRange}
	return []question{
		{"GetMetadataAllocated without a snapshot_id", allocated("", 0), missing},
		{"GetMetadataAllocated of an unknown snapshot", allocated(base+"0", 0), unknown},
		{"GetMetadataAllocated from beyond the volume", allocated(base, capacity+1), outside},
		{"GetMetadataDelta without a target_snapshot_id", delta(base, "", 0), missing},
		{"GetMetadataDelta from an unknown snapshot", delta(base+"0", target, 0), unknown},
		{"GetMetadataDelta from beyond the volume", delta(base, target, capacity+1), outside},
	}
}
