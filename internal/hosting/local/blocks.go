package local

import (
	"context"
	"errors"
	"os"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostBlocks is how many blocks an answer has.
const mostBlocks = 1024

// metadata is the CSI snapshot metadata service.
type metadata struct {
	csipb.UnimplementedSnapshotMetadataServer
	pool *pool
}

// GetMetadataAllocated names the blocks of a snapshot that have data.
func (m *metadata) GetMetadataAllocated(
	r *csipb.GetMetadataAllocatedRequest, to csipb.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	ctx := to.Context()
	s, image, err := m.open(ctx, r.GetSnapshotId())
	if err != nil {
		return err
	}
	defer image.Close()
	if err := checkFrom(r.GetStartingOffset(), r.GetMaxResults(), s.Size); err != nil {
		return err
	}
	blocks := newBlocks(r.GetMaxResults(), func(all []*csipb.BlockMetadata) error {
		return to.Send(&csipb.GetMetadataAllocatedResponse{
			BlockMetadataType: csipb.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: s.Size, BlockMetadata: all,
		})
	})
	// Data that is not on the disk yet may be reported as a hole.
	if err := image.Sync(); err != nil {
		return failure(err)
	}
	return blocks.end(eachData(ctx, image, r.GetStartingOffset(), blocks.add))
}

// GetMetadataDelta names the blocks in which a snapshot may differ from an earlier one of the volume: those that are
// not in the same place of the disk.
func (m *metadata) GetMetadataDelta(
	r *csipb.GetMetadataDeltaRequest, to csipb.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	ctx := to.Context()
	base, baseImage, err := m.open(ctx, r.GetBaseSnapshotId())
	if err != nil {
		return err
	}
	defer baseImage.Close()
	target, image, err := m.open(ctx, r.GetTargetSnapshotId())
	if err != nil {
		return err
	}
	defer image.Close()
	if base.Source != target.Source {
		return status.Errorf(codes.InvalidArgument, "snapshots %s and %s are of two volumes, %s and %s", base.ID, target.ID,
			base.Source, target.Source)
	}
	if err := checkFrom(r.GetStartingOffset(), r.GetMaxResults(), target.Size); err != nil {
		return err
	}
	if err := m.checkShares(); err != nil {
		return err
	}
	blocks := newBlocks(r.GetMaxResults(), func(all []*csipb.BlockMetadata) error {
		return to.Send(&csipb.GetMetadataDeltaResponse{
			BlockMetadataType: csipb.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: target.Size, BlockMetadata: all,
		})
	})
	from, end := r.GetStartingOffset(), target.Size
	return blocks.end(differ(from, end, piecesOf(baseImage, from, end), piecesOf(image, from, end),
		func(at, length int64) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return blocks.add(at, length)
		}))
}

// open opens the image of a snapshot. It is not locked: it never changes, and its deletion need not wait for a client
// that reads slowly.
func (m *metadata) open(ctx context.Context, id string) (record, *os.File, error) {
	if id == "" {
		return record{}, nil, status.Error(codes.InvalidArgument, "no snapshot id")
	}
	s, release, err := m.pool.hold(ctx, snapshots, id, unix.LOCK_SH, holdLimit)
	if err != nil {
		return s, nil, failure(err)
	}
	defer release()
	f, err := os.OpenFile(m.pool.image(snapshots, id), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return s, nil, failure(err)
	}
	return s, f, nil
}

// checkFrom refuses a request that begins outside of the snapshot.
func checkFrom(from int64, most int32, size int64) error {
	switch {
	case from < 0:
		return status.Error(codes.InvalidArgument, "starting_offset is negative")
	case most < 0:
		return status.Error(codes.InvalidArgument, "max_results is negative")
	case from > size:
		return status.Errorf(codes.OutOfRange, "starting_offset is %d, the snapshot has %d bytes", from, size)
	}
	return nil
}

// checkShares refuses a pool whose filesystem copies the data of each snapshot: there the equal blocks cannot be
// determined.
func (m *metadata) checkShares() error {
	err := m.tryShare()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return status.Error(codes.FailedPrecondition, "the filesystem of the pool does not share blocks between files, so "+
			"nothing records what has changed: read all that is allocated, or have the pool on btrfs, or on xfs with reflink")
	}
	if err != nil {
		return failure(err)
	}
	return nil
}

// tryShare makes two files without a name share their content, which is empty.
func (m *metadata) tryShare() error {
	var both [2]*os.File
	for i := range both {
		f, err := os.OpenFile(m.pool.dir, os.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		both[i] = f
	}
	return unix.IoctlFileClone(int(both[0].Fd()), int(both[1].Fd()))
}

// blocks collects blocks and sends as many at a time as a client wants. Adjacent blocks are merged.
type blocks struct {
	most int
	all  []*csipb.BlockMetadata
	send func(all []*csipb.BlockMetadata) error
	sent bool
}

func newBlocks(most int32, send func([]*csipb.BlockMetadata) error) *blocks {
	b := &blocks{most: mostBlocks, send: send}
	if most > 0 {
		b.most = min(b.most, int(most))
	}
	return b
}

// add adds a block behind those before it. The last one is kept, because the next may continue it.
func (b *blocks) add(at, length int64) error {
	if n := len(b.all); n > 0 && b.all[n-1].ByteOffset+b.all[n-1].SizeBytes == at {
		b.all[n-1].SizeBytes += length
		return nil
	}
	if len(b.all) == b.most {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.all = append(b.all, &csipb.BlockMetadata{ByteOffset: at, SizeBytes: length})
	return nil
}

// end sends the rest unless something has failed. There is always an answer, for it has the size of the volume.
func (b *blocks) end(err error) error {
	if err == nil && (len(b.all) > 0 || !b.sent) {
		err = b.flush()
	}
	if err != nil {
		return failure(err)
	}
	return nil
}

func (b *blocks) flush() error {
	b.sent = true
	err := b.send(b.all)
	// What was sent must not change.
	b.all = nil
	return err
}
