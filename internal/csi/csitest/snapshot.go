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
