package hostile

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Probe says that the driver is ready.
func (s *side) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginInfo returns the name.
func (s *side) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: s.d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities returns that there is a controller service.
func (s *side) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csipb.GetPluginCapabilitiesResponse{
		Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{Service: service}}},
	}, nil
}

// can returns the capabilities of the controller service.
func (d *driver) can() []csipb.ControllerServiceCapability_RPC_Type {
	out := []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	}
	if d.lists {
		out = append(out, csipb.ControllerServiceCapability_RPC_LIST_VOLUMES,
			csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	}
	if d.grows {
		out = append(out, csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	}
	if d.counts {
		out = append(out, csipb.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	return out
}

// ControllerGetCapabilities returns the capabilities of the controller service.
func (s *side) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, can := range s.d.can() {
		rpc := &csipb.ControllerServiceCapability_RPC{Type: can}
		out.Capabilities = append(out.Capabilities,
			&csipb.ControllerServiceCapability{Type: &csipb.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

// NodeGetInfo returns the node's id.
func (s *side) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: idOf(s.place)}, nil
}

func idOf(node string) string { return "id-" + node }

func nodeOf(id string) string { return strings.TrimPrefix(id, "id-") }

// CreateVolume creates a volume, or returns the existing one.
func (s *side) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	bytes := max(met(ctx, 0, r), 1<<20)
	id := volumeOf(r)
	v := s.d.disks[id]
	fresh := v == nil
	if fresh {
		v = newDisk()
		v.bytes, v.formatted, s.d.disks[id] = bytes, bytes, v
		for _, c := range r.GetVolumeCapabilities() {
			v.many, v.block = c.GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
				c.GetBlock() != nil
		}
	}
	answer := &csipb.Volume{VolumeId: id, CapacityBytes: said(ctx, v.bytes)}
	if fresh && ctx.Value(sayingKey{}) == other {
		// It answers with the right one when it is called again: until then, the volume could not be found.
		answer.VolumeId = s.d.inUse(id)
		if s.d.forgets && answer.VolumeId != id {
			delete(s.d.disks, id)
		}
	}
	return &csipb.CreateVolumeResponse{Volume: answer}, nil
}

// inUse returns the id of another volume that is attached and so has an object, or the same one if there is none.
func (d *driver) inUse(id string) string {
	for _, it := range slices.Sorted(maps.Keys(d.disks)) {
		if it != id && len(d.disks[it].attached) > 0 {
			return it
		}
	}
	return id
}

// GetCapacity answers what no storage has, or hangs.
func (s *side) GetCapacity(ctx context.Context, _ *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if s.d.mood.calm.Load() {
		return &csipb.GetCapacityResponse{AvailableCapacity: enough}, nil
	}
	dice := s.d.mood.dice("GetCapacity", s.place)
	if dice.IntN(8) == 0 {
		<-ctx.Done()
		return nil, status.Error(codes.Canceled, "it hung")
	}
	amounts := []int64{0, -1, math.MinInt64, math.MaxInt64, enough}
	return &csipb.GetCapacityResponse{
		AvailableCapacity: amounts[dice.IntN(len(amounts))],
		MaximumVolumeSize: wrapperspb.Int64(amounts[dice.IntN(len(amounts))]),
	}, nil
}

// enough is room for all volumes of a life.
const enough = 1 << 40

// DeleteVolume refuses to delete a volume that is in use.
func (s *side) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	v := s.d.disks[r.GetVolumeId()]
	if v != nil && (len(v.attached) > 0 || slices.ContainsFunc(nodes(), v.used)) {
		return nil, s.d.fault("delete of %s, which is in use: %+v", r.GetVolumeId(), v)
	}
	delete(s.d.disks, r.GetVolumeId())
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume attaches a volume, to one node only if it is for one node.
func (s *side) ControllerPublishVolume(
	ctx context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	v, node := s.d.disks[r.GetVolumeId()], nodeOf(r.GetNodeId())
	if v == nil {
		return nil, status.Error(codes.NotFound, "the volume does not exist")
	}
	if !v.attached[node] && len(v.attached) > 0 && !v.many {
		return nil, s.d.fault("volume %s is at %v and is to be attached to %s", r.GetVolumeId(), v.attached, node)
	}
	v.attached[node] = true
	return &csipb.ControllerPublishVolumeResponse{PublishContext: v.login(node, ctx.Value(sayingKey{}))}, nil
}

// ControllerUnpublishVolume detaches a volume that the node does not use any more.
func (s *side) ControllerUnpublishVolume(
	_ context.Context, r *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	v, node := s.d.disks[r.GetVolumeId()], nodeOf(r.GetNodeId())
	if v != nil && v.used(node) {
		return nil, s.d.fault("detach of %s under what node %s uses: %+v", r.GetVolumeId(), node, v)
	}
	if v != nil {
		delete(v.attached, node)
		delete(v.logins, node)
	}
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// ControllerExpandVolume expands a volume.
func (s *side) ControllerExpandVolume(
	ctx context.Context, r *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	v := s.d.disks[r.GetVolumeId()]
	if v == nil {
		return nil, s.d.fault("growth of %s, which does not exist", r.GetVolumeId())
	}
	v.bytes = max(v.bytes, met(ctx, v.bytes, r))
	if !s.d.growsNodes {
		v.formatted = v.bytes
	}
	return &csipb.ControllerExpandVolumeResponse{
		CapacityBytes: said(ctx, v.bytes), NodeExpansionRequired: s.d.growsNodes,
	}, nil
}

// sayingKey is the key of the saying of a call in its context.
type sayingKey struct{}

// met returns the size that a volume of some size has after a call that is drawn to meet a request in its way.
func met(ctx context.Context, has int64, r interface{ GetCapacityRange() *csipb.CapacityRange }) int64 {
	switch ctx.Value(sayingKey{}) {
	case less:
		return has
	case more:
		return r.GetCapacityRange().GetRequiredBytes() + 1<<20
	}
	return r.GetCapacityRange().GetRequiredBytes()
}

// said returns what a driver answers about a size.
func said(ctx context.Context, bytes int64) int64 {
	if ctx.Value(sayingKey{}) == nothing {
		return 0
	}
	return bytes
}

// ListVolumes returns all volumes on one page.
func (s *side) ListVolumes(context.Context, *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	out := &csipb.ListVolumesResponse{}
	for id, v := range s.d.disks {
		if inline(id) {
			continue
		}
		told := &csipb.ListVolumesResponse_VolumeStatus{}
		for node := range v.attached {
			told.PublishedNodeIds = append(told.PublishedNodeIds, idOf(node))
		}
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{Volume: &csipb.Volume{VolumeId: id}, Status: told})
	}
	return out, nil
}
