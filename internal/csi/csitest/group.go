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
