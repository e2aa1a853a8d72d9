package local

import (
	"context"
	"errors"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/csi"
)

// maxMembers is how many volumes a group may have: all of them wait for the copies of all.
const maxMembers = 100

// groupController is the CSI group controller service.
type groupController struct {
	csipb.UnimplementedGroupControllerServer
	*controller
}

// CreateVolumeGroupSnapshot copies volumes as they are at one moment, or finds the copies that an equal call has made,
// even if the volumes have been deleted since.
func (c *groupController) CreateVolumeGroupSnapshot(
	ctx context.Context, r *csipb.CreateVolumeGroupSnapshotRequest,
) (*csipb.CreateVolumeGroupSnapshotResponse, error) {
	if err := checkName(r.GetName()); err != nil {
		return nil, err
	}
	if err := checkParameters(r.GetParameters()); err != nil {
		return nil, err
	}
	sources, err := membersOf(r.GetSourceVolumeIds())
	if err != nil {
		return nil, err
	}
	id := groups.idOf(r.GetName())
	g, members, err := c.pool.group(id)
	if errors.Is(err, errMissing) {
		g, members, err = c.take(ctx, group{ID: id, Name: r.GetName(), Sources: sources})
	}
	if err != nil {
		return nil, failure(err)
	}
	if !slices.Equal(g.Sources, sources) {
		return nil, status.Errorf(codes.AlreadyExists, "group %s already exists with %d volumes, which are not the ones "+
			"requested; delete it first or choose another name", g.ID, len(g.Sources))
	}
	return &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: c.pool.describeGroup(g, members)}, nil
}

// membersOf returns the ids of a group's volumes in order.
func membersOf(ids []string) ([]string, error) {
	if len(ids) == 0 || len(ids) > maxMembers {
		return nil, status.Errorf(codes.InvalidArgument, "a group of %d volumes, want 1 to %d", len(ids), maxMembers)
	}
	sorted := slices.Sorted(slices.Values(ids))
	if distinct := slices.Compact(slices.Clone(sorted)); len(distinct) != len(sorted) {
		return nil, status.Error(codes.InvalidArgument, "a volume is named twice")
	}
	return sorted, nil
}

// take copies the volumes of a group while none of them can change.
func (c *groupController) take(ctx context.Context, g group) (group, []record, error) {
	sources, release, err := c.pool.holdAll(ctx, volumes, g.Sources, unix.LOCK_EX)
	if err != nil {
		return g, nil, err
	}
	defer release()
	if err := c.checkSpare(); err != nil {
		return g, nil, err
	}
	return c.pool.addGroup(ctx, g, sources, func(drafts []draft) (int64, error) { return c.copyAll(ctx, drafts) })
}

// copyAll copies all sources as they are at the moment that it returns. Every filesystem is frozen
// before the first one is copied, and none is thawed before the last one is.
func (c *groupController) copyAll(ctx context.Context, drafts []draft) (at int64, err error) {
	thaw, err := c.freezeAll(drafts)
	defer func() { err = errors.Join(err, thaw()) }()
	if err != nil {
		return 0, err
	}
	at = time.Now().UnixNano()
	for _, d := range drafts {
		if c.pool.formatting(d.source.ID) {
			continue // it was never mounted, so it is empty
		}
		if err := copyImage(ctx, c.pool.image(volumes, d.source.ID), d.image, c.log); err != nil {
			return 0, err
		}
	}
	return at, nil
}

// freezeAll freezes all mounted sources. thaw ends that for those that were frozen, also after an
// error.
func (c *groupController) freezeAll(drafts []draft) (thaw func() error, err error) {
	var thaws []func() error
	thaw = func() error {
		var failed []error
		for _, f := range slices.Backward(thaws) {
			failed = append(failed, f())
		}
		return errors.Join(failed...)
	}
	for _, d := range drafts {
		if c.pool.formatting(d.source.ID) {
			continue
		}
		image := c.pool.image(volumes, d.source.ID)
		if err := c.pool.refuseRaw(d.source, image); err != nil {
			return thaw, err
		}
		one, err := c.pool.freeze(image)
		if err != nil {
			return thaw, err
		}
		thaws = append(thaws, one)
	}
	return thaw, nil
}

func (p *pool) describeGroup(g group, members []record) *csipb.VolumeGroupSnapshot {
	out := &csipb.VolumeGroupSnapshot{
		GroupSnapshotId: g.ID, CreationTime: timestamppb.New(time.Unix(0, g.Created)), ReadyToUse: true,
	}
	for _, s := range members {
		out.Snapshots = append(out.Snapshots, p.describeSnapshot(s))
	}
	return out
}

// checkMembers refuses a list of snapshots that are not those of the group. An empty one says nothing.
func checkMembers(g group, members []record, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	have := make([]string, 0, len(members))
	for _, s := range members {
		have = append(have, s.ID)
	}
	slices.Sort(have)
	if !slices.Equal(have, slices.Compact(slices.Sorted(slices.Values(ids)))) {
		return status.Errorf(codes.InvalidArgument, "the %d snapshots are not those of group %s, which has %d",
			len(ids), g.ID, len(have))
	}
	return nil
}

// GetVolumeGroupSnapshot describes one group.
func (c *groupController) GetVolumeGroupSnapshot(
	_ context.Context, r *csipb.GetVolumeGroupSnapshotRequest,
) (*csipb.GetVolumeGroupSnapshotResponse, error) {
	g, members, err := c.pool.group(r.GetGroupSnapshotId())
	if err != nil {
		return nil, failure(err)
	}
	if err := checkMembers(g, members, r.GetSnapshotIds()); err != nil {
		return nil, err
	}
	return &csipb.GetVolumeGroupSnapshotResponse{GroupSnapshot: c.pool.describeGroup(g, members)}, nil
}

// DeleteVolumeGroupSnapshot deletes a group with all its snapshots; volumes created from them stay.
func (c *groupController) DeleteVolumeGroupSnapshot(
	ctx context.Context, r *csipb.DeleteVolumeGroupSnapshotRequest,
) (*csipb.DeleteVolumeGroupSnapshotResponse, error) {
	err := c.dropGroup(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if err != nil && !errors.Is(err, errMissing) && !errors.Is(err, errID) {
		return nil, failure(err)
	}
	return &csipb.DeleteVolumeGroupSnapshotResponse{}, nil
}

func (c *groupController) dropGroup(ctx context.Context, id string, snapshotIDs []string) error {
	g, members, err := c.pool.group(id)
	if err != nil {
		return err
	}
	if err := checkMembers(g, members, snapshotIDs); err != nil {
		return err
	}
	ids := make([]string, 0, len(members))
	for _, s := range members {
		ids = append(ids, s.ID)
	}
	// A snapshot that is being restored is locked.
	_, release, err := c.pool.holdAll(ctx, snapshots, ids, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer release()
	return c.pool.removeGroup(id)
}

// GroupControllerGetCapabilities lists the capabilities of the group controller service.
func (c *groupController) GroupControllerGetCapabilities(
	context.Context, *csipb.GroupControllerGetCapabilitiesRequest,
) (*csipb.GroupControllerGetCapabilitiesResponse, error) {
	return csi.GroupCapabilities{Snapshot: true}.Answer(), nil
}
