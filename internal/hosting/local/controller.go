package local

import (
	"context"
	"errors"
	"slices"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// ControllerPublishVolume reserves the volume for one node at a time. It is a fence that
// NodeStageVolume checks.
func (c *controller) ControllerPublishVolume(
	_ context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	if _, err := checkCapabilities([]*csipb.VolumeCapability{r.GetVolumeCapability()}); err != nil {
		return nil, err
	}
	if _, err := c.pool.get(volumes, r.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	if !c.pool.knowsNode(r.GetNodeId()) {
		return nil, status.Errorf(codes.NotFound, "node %.128q: no driver serves it with pool %s; start one there first",
			r.GetNodeId(), c.pool.dir)
	}
	if err := c.pool.publish(r.GetVolumeId(), r.GetNodeId()); err != nil {
		return nil, failure(err)
	}
	return &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"pool": c.pool.id}}, nil
}

// ControllerUnpublishVolume ends the reservation of a volume for a node, or for any node if the request names none.
func (c *controller) ControllerUnpublishVolume(
	_ context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	err := c.pool.unpublish(r.GetVolumeId(), r.GetNodeId())
	if err != nil && !errors.Is(err, errMissing) && !errors.Is(err, errID) {
		return nil, failure(err)
	}
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities says whether a volume can be used as requested.
func (c *controller) ValidateVolumeCapabilities(
	_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := c.pool.get(volumes, r.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	if _, err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// publishedTo returns the error for a call that needs a volume which is published to another node.
func publishedTo(v record) error {
	return status.Errorf(codes.FailedPrecondition,
		"volume %s is published to node %.128q; unpublish it there first", v.ID, v.Node)
}

func publishedNodes(v record) []string {
	if v.Node == "" {
		return nil
	}
	return []string{v.Node}
}

// ListVolumes lists all volumes and the nodes they are published to.
func (c *controller) ListVolumes(_ context.Context, r *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	all, err := c.pool.list(volumes)
	if err != nil {
		return nil, failure(err)
	}
	some, next, err := page(all, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListVolumesResponse{NextToken: next}
	for _, v := range some {
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{
			Volume: c.describe(v), Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: publishedNodes(v)},
		})
	}
	return out, nil
}

// ControllerGetVolume describes one volume.
func (c *controller) ControllerGetVolume(
	_ context.Context, r *csipb.ControllerGetVolumeRequest,
) (*csipb.ControllerGetVolumeResponse, error) {
	v, err := c.pool.get(volumes, r.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.ControllerGetVolumeResponse{
		Volume: c.describe(v), Status: &csipb.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: publishedNodes(v)},
	}, nil
}

// ListSnapshots lists all snapshots, those of a volume, or one.
func (c *controller) ListSnapshots(
	_ context.Context, r *csipb.ListSnapshotsRequest,
) (*csipb.ListSnapshotsResponse, error) {
	all, err := c.pool.list(snapshots)
	if err != nil {
		return nil, failure(err)
	}
	all = slices.DeleteFunc(all, func(s record) bool {
		return r.GetSnapshotId() != "" && s.ID != r.GetSnapshotId() ||
			r.GetSourceVolumeId() != "" && s.Source != r.GetSourceVolumeId()
	})
	some, next, err := page(all, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListSnapshotsResponse{NextToken: next}
	for _, s := range some {
		out.Entries = append(out.Entries, &csipb.ListSnapshotsResponse_Entry{Snapshot: c.pool.describeSnapshot(s)})
	}
	return out, nil
}

// GetCapacity returns how many bytes could be written to a new volume now.
func (c *controller) GetCapacity(_ context.Context, r *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if t := r.GetAccessibleTopology(); t != nil && t.GetSegments()[volume.TopologyPool] != c.pool.id {
		return &csipb.GetCapacityResponse{}, nil
	}
	// Capabilities without an access mode mean all modes: upstream's provisioner sends them.
	all := slices.DeleteFunc(slices.Clone(r.GetVolumeCapabilities()), func(c *csipb.VolumeCapability) bool {
		return c.GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_UNKNOWN
	})
	if len(all) > 0 {
		if _, err := checkCapabilities(all); err != nil {
			return &csipb.GetCapacityResponse{}, nil //nolint:nilerr // of what cannot be made there is room for none
		}
	}
	usage, err := mount.Stat(c.pool.dir)
	if err != nil {
		return nil, failure(err)
	}
	return &csipb.GetCapacityResponse{
		AvailableCapacity: max(0, usage.Available-c.keep), MaximumVolumeSize: wrapperspb.Int64(usage.Total),
	}, nil
}

// page returns one page of entries; tokens are positions.
func page[T any](entries []T, token string, most int32) ([]T, string, error) {
	start := 0
	if token != "" {
		var err error
		if start, err = strconv.Atoi(token); err != nil || start < 0 || start > len(entries) {
			return nil, "", status.Errorf(codes.Aborted,
				"starting token %.40q is not one of ours; start the list again without one", token)
		}
	}
	if most < 0 {
		return nil, "", status.Errorf(codes.InvalidArgument, "%d is not a number of entries", most)
	}
	end := len(entries)
	if most > 0 {
		end = min(end, start+int(most))
	}
	next := ""
	if end < len(entries) {
		next = strconv.Itoa(end)
	}
	return slices.Clone(entries[start:end]), next, nil
}

// ControllerGetCapabilities lists the capabilities of the controller service.
func (c *controller) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	return csi.ControllerCapabilities{
		CreateDelete: true, PublishUnpublish: true, ListVolumes: true, ListVolumesPublishedNodes: true, GetCapacity: true,
		Snapshot: true, ListSnapshots: true, GetSnapshot: true, Clone: true, Expand: true, GetVolume: true,
		SingleNodeMultiWriter: true, Modify: true,
	}.Answer(), nil
}
