package csitest

import (
	"context"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Snapshots returns the ids of all snapshots, sorted.
func (d *Driver) Snapshots() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.snapshots))
}

// firstSnapshots returns the snapshots that a driver has from its beginning.
func firstSnapshots(ids []string) map[string]*csipb.Snapshot {
	out := map[string]*csipb.Snapshot{}
	for _, id := range ids {
		out[id] = &csipb.Snapshot{
			SnapshotId: id, SizeBytes: defaultBytes, ReadyToUse: true, CreationTime: &timestamppb.Timestamp{Seconds: 1},
		}
	}
	return out
}

// CreateSnapshot takes a snapshot, or returns the existing one with the name.
func (d *Driver) CreateSnapshot(
	_ context.Context, r *csipb.CreateSnapshotRequest,
) (*csipb.CreateSnapshotResponse, error) {
	if r.GetName() == "" {
		return nil, invalid("a name is required")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "id-" + r.GetName()
	if s := d.snapshots[id]; s != nil {
		if s.GetSourceVolumeId() != r.GetSourceVolumeId() {
			return nil, status.Errorf(codes.AlreadyExists, "snapshot %s is one of another volume", r.GetName())
		}
		return &csipb.CreateSnapshotResponse{Snapshot: s}, nil
	}
	v, err := d.find(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	s := &csipb.Snapshot{
		SnapshotId: id, SourceVolumeId: v.id, SizeBytes: v.bytes, ReadyToUse: true,
		CreationTime: &timestamppb.Timestamp{Seconds: 1},
	}
	if d.config.Plugin.SnapshotAccessibilityConstraints {
		if s.AccessibleTopology = r.GetAccessibilityRequirements().GetPreferred(); len(s.GetAccessibleTopology()) == 0 {
			s.AccessibleTopology = []*csipb.Topology{{Segments: d.config.Segments}}
		}
	}
	d.snapshots[id] = s
	return &csipb.CreateSnapshotResponse{Snapshot: s}, nil
}

// DeleteSnapshot removes a snapshot.
func (d *Driver) DeleteSnapshot(
	_ context.Context, r *csipb.DeleteSnapshotRequest,
) (*csipb.DeleteSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, r.GetSnapshotId())
	return &csipb.DeleteSnapshotResponse{}, nil
}

// ListSnapshots returns all snapshots, or those with an id or of a volume.
func (d *Driver) ListSnapshots(
	_ context.Context, r *csipb.ListSnapshotsRequest,
) (*csipb.ListSnapshotsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &csipb.ListSnapshotsResponse{}
	for _, id := range slices.Sorted(maps.Keys(d.snapshots)) {
		s := d.snapshots[id]
		if r.GetSnapshotId() != "" && r.GetSnapshotId() != id ||
			r.GetSourceVolumeId() != "" && r.GetSourceVolumeId() != s.GetSourceVolumeId() {
			continue
		}
		out.Entries = append(out.Entries, &csipb.ListSnapshotsResponse_Entry{Snapshot: s})
	}
	return out, nil
}

// GetSnapshot returns a snapshot.
func (d *Driver) GetSnapshot(_ context.Context, r *csipb.GetSnapshotRequest) (*csipb.GetSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.snapshots[r.GetSnapshotId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "there is no snapshot %s", r.GetSnapshotId())
	}
	return &csipb.GetSnapshotResponse{Snapshot: s}, nil
}

// Groups returns the ids of all groups of snapshots, sorted.
func (d *Driver) Groups() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.groups))
}

// GroupControllerGetCapabilities returns the configured capabilities.
func (d *Driver) GroupControllerGetCapabilities(
	context.Context, *csipb.GroupControllerGetCapabilitiesRequest,
) (*csipb.GroupControllerGetCapabilitiesResponse, error) {
	return d.config.Group.Answer(), nil
}

// CreateVolumeGroupSnapshot takes a group of snapshots, or returns the existing one with the name.
func (d *Driver) CreateVolumeGroupSnapshot(
	_ context.Context, r *csipb.CreateVolumeGroupSnapshotRequest,
) (*csipb.CreateVolumeGroupSnapshotResponse, error) {
	if r.GetName() == "" || len(r.GetSourceVolumeIds()) == 0 {
		return nil, invalid("a name and volume ids are required")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "id-" + r.GetName()
	if g := d.groups[id]; g != nil {
		for i, s := range g.GetSnapshots() {
			if len(g.GetSnapshots()) != len(r.GetSourceVolumeIds()) || s.GetSourceVolumeId() != r.GetSourceVolumeIds()[i] {
				return nil, status.Errorf(codes.AlreadyExists, "group %s is one of other volumes", r.GetName())
			}
		}
		return &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
	}
	g := &csipb.VolumeGroupSnapshot{
		GroupSnapshotId: id, ReadyToUse: true, CreationTime: &timestamppb.Timestamp{Seconds: 1},
	}
	for _, volume := range r.GetSourceVolumeIds() {
		v, err := d.find(volume)
		if err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots, &csipb.Snapshot{
			SnapshotId: id + "-" + v.id, SourceVolumeId: v.id, SizeBytes: v.bytes, ReadyToUse: true, GroupSnapshotId: id,
			CreationTime: g.GetCreationTime(),
		})
	}
	for _, s := range g.GetSnapshots() {
		d.snapshots[s.GetSnapshotId()] = s
	}
	d.groups[id] = g
	return &csipb.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

// GetVolumeGroupSnapshot returns a group of snapshots.
func (d *Driver) GetVolumeGroupSnapshot(
	_ context.Context, r *csipb.GetVolumeGroupSnapshotRequest,
) (*csipb.GetVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return nil, status.Errorf(codes.NotFound, "there is no group %s", r.GetGroupSnapshotId())
	}
	return &csipb.GetVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

// DeleteVolumeGroupSnapshot removes a group with its snapshots.
func (d *Driver) DeleteVolumeGroupSnapshot(
	_ context.Context, r *csipb.DeleteVolumeGroupSnapshotRequest,
) (*csipb.DeleteVolumeGroupSnapshotResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.groups[r.GetGroupSnapshotId()].GetSnapshots() {
		delete(d.snapshots, s.GetSnapshotId())
	}
	delete(d.groups, r.GetGroupSnapshotId())
	return &csipb.DeleteVolumeGroupSnapshotResponse{}, nil
}
