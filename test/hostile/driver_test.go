package hostile

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// disk is one volume of a driver: what the driver has, whatever anybody says.
type disk struct {
	// many says that it may be on many nodes.
	many bool
	// attached and staged are by node, published by target path.
	attached  map[string]bool
	staged    map[string]string
	published map[string]map[string]bool
}

func (v *disk) used(node string) bool { return v.staged[node] != "" || len(v.published[node]) > 0 }

// Probe says that the driver is ready.
func (s *side) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginInfo tells the name.
func (s *side) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: s.d.name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities tells of a controller service.
func (s *side) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{Service: service}}}}, nil
}

// ControllerGetCapabilities tells what the controller service can.
func (s *side) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (*csipb.ControllerGetCapabilitiesResponse, error) {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, kind := range s.d.can {
		rpc := &csipb.ControllerServiceCapability_RPC{Type: kind}
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{Type: &csipb.ControllerServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

// NodeGetCapabilities says that it stages.
func (s *side) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	rpc := &csipb.NodeServiceCapability_RPC{Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{Type: &csipb.NodeServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// NodeGetInfo tells the node.
func (s *side) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: idOf(s.place)}, nil
}

func idOf(node string) string { return "id-" + node }

func nodeOf(id string) string { return strings.TrimPrefix(id, "id-") }

// CreateVolume makes a volume, or finds it.
func (s *side) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	bytes := max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)
	id := volumeOf(r)
	if s.d.disks[id] == nil {
		s.d.disks[id] = &disk{attached: map[string]bool{}, staged: map[string]string{}, published: map[string]map[string]bool{}}
		for _, c := range r.GetVolumeCapabilities() {
			s.d.disks[id].many = c.GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: id, CapacityBytes: bytes}}, nil
}

// DeleteVolume refuses what is in use, for ever if need be.
func (s *side) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	v := s.d.disks[r.GetVolumeId()]
	if v != nil && (len(v.attached) > 0 || slices.ContainsFunc(nodes(), v.used)) {
		return nil, s.d.fault("delete of %s, which is in use: %+v", r.GetVolumeId(), v)
	}
	delete(s.d.disks, r.GetVolumeId())
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume attaches, a volume for one node to one only.
func (s *side) ControllerPublishVolume(_ context.Context, r *csipb.ControllerPublishVolumeRequest) (*csipb.ControllerPublishVolumeResponse, error) {
	v, node := s.d.disks[r.GetVolumeId()], nodeOf(r.GetNodeId())
	if v == nil {
		return nil, status.Error(codes.NotFound, "there is no such volume")
	}
	if !v.attached[node] && len(v.attached) > 0 && !v.many {
		return nil, s.d.fault("volume %s is at %v and is to be attached to %s", r.GetVolumeId(), v.attached, node)
	}
	v.attached[node] = true
	return &csipb.ControllerPublishVolumeResponse{}, nil
}

// ControllerUnpublishVolume detaches what the node does not use any more.
func (s *side) ControllerUnpublishVolume(_ context.Context, r *csipb.ControllerUnpublishVolumeRequest) (*csipb.ControllerUnpublishVolumeResponse, error) {
	v, node := s.d.disks[r.GetVolumeId()], nodeOf(r.GetNodeId())
	if v != nil && v.used(node) {
		return nil, s.d.fault("detach of %s under what node %s uses: %+v", r.GetVolumeId(), node, v)
	}
	if v != nil {
		delete(v.attached, node)
	}
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// ListVolumes tells everything on one page.
func (s *side) ListVolumes(context.Context, *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	out := &csipb.ListVolumesResponse{}
	for id, v := range s.d.disks {
		told := &csipb.ListVolumesResponse_VolumeStatus{}
		for node := range v.attached {
			told.PublishedNodeIds = append(told.PublishedNodeIds, idOf(node))
		}
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{Volume: &csipb.Volume{VolumeId: id}, Status: told})
	}
	return out, nil
}

// NodeStageVolume mounts a filesystem of its own at the staging path.
func (s *side) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetStagingTargetPath()
	switch {
	case v == nil || !v.attached[s.place]:
		return nil, s.d.fault("stage of %s at %s, which is not attached there", r.GetVolumeId(), s.place)
	case v.staged[s.place] == path:
		return &csipb.NodeStageVolumeResponse{}, nil
	case v.staged[s.place] != "":
		return nil, s.d.fault("stage of %s at %s and at %s", r.GetVolumeId(), v.staged[s.place], path)
	}
	if err := unix.Mount("hostile", path, "tmpfs", 0, "size=64k"); err != nil {
		return nil, status.Error(codes.Internal, "mount: "+err.Error())
	}
	v.staged[s.place] = path
	return &csipb.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume refuses while the volume is published.
func (s *side) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetStagingTargetPath()
	switch {
	case v == nil || v.staged[s.place] == "":
		return &csipb.NodeUnstageVolumeResponse{}, nil
	case v.staged[s.place] != path:
		return nil, s.d.fault("unstage of %s from %s, it is at %s", r.GetVolumeId(), path, v.staged[s.place])
	case len(v.published[s.place]) > 0:
		return nil, s.d.fault("unstage of %s under %v", r.GetVolumeId(), v.published[s.place])
	}
	if err := unmount(path); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	delete(v.staged, s.place)
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// unmount also finds that it is done already: whoever may, may unmount.
func unmount(path string) error {
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT { //nolint:errorlint // a number
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// NodePublishVolume shows at a target what is staged.
func (s *side) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetTargetPath()
	if v == nil || v.staged[s.place] == "" || v.staged[s.place] != r.GetStagingTargetPath() {
		return nil, s.d.fault("publish of %s from %s, where it is not staged", r.GetVolumeId(), r.GetStagingTargetPath())
	}
	if v.published[s.place][path] {
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	err := os.MkdirAll(path, 0o750)
	if err == nil {
		err = unix.Mount(r.GetStagingTargetPath(), path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return nil, status.Error(codes.Internal, "bind: "+err.Error())
	}
	if v.published[s.place] == nil {
		v.published[s.place] = map[string]bool{}
	}
	v.published[s.place][path] = true
	return &csipb.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume takes the target away.
func (s *side) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (*csipb.NodeUnpublishVolumeResponse, error) {
	v, path := s.d.disks[r.GetVolumeId()], r.GetTargetPath()
	if v == nil || !v.published[s.place][path] {
		return &csipb.NodeUnpublishVolumeResponse{}, nil
	}
	if err := unmount(path); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	_ = os.Remove(path)
	delete(v.published[s.place], path)
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}
