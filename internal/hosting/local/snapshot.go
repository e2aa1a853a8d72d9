package local

import (
	"context"
	"errors"
	"os"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// CreateSnapshot copies a volume as it is at one moment, or finds the copy that an equal call has made, even if the
// volume has been deleted since.
func (c *controller) CreateSnapshot(
	ctx context.Context, r *csipb.CreateSnapshotRequest,
) (*csipb.CreateSnapshotResponse, error) {
	if err := checkName(r.GetName()); err != nil {
		return nil, err
	}
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	if err := c.checkTopology(r.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	id := snapshots.idOf(r.GetName())
	made, err := c.pool.get(snapshots, id)
	if errors.Is(err, errMissing) {
		made, err = c.snapshot(ctx, id, r)
	}
	if err != nil {
		return nil, failure(err)
	}
	if made.Source != r.GetSourceVolumeId() {
		return nil, status.Errorf(codes.AlreadyExists,
			"snapshot %s exists of volume %s; delete it first or choose another name", made.ID, made.Source)
	}
	return &csipb.CreateSnapshotResponse{Snapshot: c.pool.describeSnapshot(made)}, nil
}

func (c *controller) snapshot(ctx context.Context, id string, r *csipb.CreateSnapshotRequest) (record, error) {
	v, release, err := c.pool.hold(ctx, volumes, r.GetSourceVolumeId(), unix.LOCK_EX, holdLimit)
	if err != nil {
		return v, err
	}
	defer release()
	if err := c.checkSpare(); err != nil {
		return v, err
	}
	want := record{ID: id, Name: r.GetName(), Size: v.Size, Source: v.ID, Created: time.Now().UnixNano()}
	return c.pool.add(ctx, snapshots, want, func(image *os.File) error { return c.fill(ctx, image, v) })
}

func (p *pool) describeSnapshot(s record) *csipb.Snapshot {
	return &csipb.Snapshot{
		SnapshotId: s.ID, SourceVolumeId: s.Source, SizeBytes: s.Size, ReadyToUse: true, GroupSnapshotId: groupOf(s.ID),
		CreationTime: timestamppb.New(time.Unix(0, s.Created)), AccessibleTopology: []*csipb.Topology{p.topology()},
	}
}

// GetSnapshot describes one snapshot.
func (c *controller) GetSnapshot(_ context.Context, r *csipb.GetSnapshotRequest) (*csipb.GetSnapshotResponse, error) {
	s, err := c.pool.get(snapshots, r.GetSnapshotId())
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.GetSnapshotResponse{Snapshot: c.pool.describeSnapshot(s)}, nil
}

// aloneOnly refuses a snapshot that can only be deleted with its group.
func aloneOnly(s record) error {
	if group := groupOf(s.ID); group != "" {
		return status.Errorf(codes.InvalidArgument, "snapshot %s is part of group %s; delete the group", s.ID, group)
	}
	return nil
}

// DeleteSnapshot deletes a snapshot; volumes made from it live on.
func (c *controller) DeleteSnapshot(
	ctx context.Context, r *csipb.DeleteSnapshotRequest,
) (*csipb.DeleteSnapshotResponse, error) {
	_, release, err := c.pool.hold(ctx, snapshots, r.GetSnapshotId(), unix.LOCK_EX, holdLimit)
	if err == nil {
		defer release()
		err = c.pool.remove(snapshots, r.GetSnapshotId(), aloneOnly)
	}
	if err != nil && !errors.Is(err, errMissing) && !errors.Is(err, errID) {
		return nil, failure(err)
	}
	return &csipb.DeleteSnapshotResponse{}, nil
}
