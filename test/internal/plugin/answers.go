package plugin

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// GetPluginInfo returns the name.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// Probe says that it works.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

// GetPluginCapabilities says that it attaches.
func (d *Driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := &csipb.PluginCapability_Service{Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csipb.GetPluginCapabilitiesResponse{
		Capabilities: []*csipb.PluginCapability{{Type: &csipb.PluginCapability_Service_{Service: service}}},
	}, nil
}

// ControllerGetCapabilities says that it attaches.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	rpc := &csipb.ControllerServiceCapability_RPC{Type: csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csipb.ControllerGetCapabilitiesResponse{
		Capabilities: []*csipb.ControllerServiceCapability{{Type: &csipb.ControllerServiceCapability_Rpc{Rpc: rpc}}},
	}, nil
}

// ControllerPublishVolume returns the node of the request.
func (d *Driver) ControllerPublishVolume(
	_ context.Context, r *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	return &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"at": r.GetNodeId()}}, nil
}

// ControllerUnpublishVolume has nothing to do.
func (d *Driver) ControllerUnpublishVolume(
	context.Context, *csipb.ControllerUnpublishVolumeRequest,
) (*csipb.ControllerUnpublishVolumeResponse, error) {
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// NodeGetCapabilities says that it stages.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	able := []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.MountGroup {
		able = append(able, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	}
	for _, able := range able {
		rpc := &csipb.NodeServiceCapability_RPC{Type: able}
		out.Capabilities = append(out.Capabilities,
			&csipb.NodeServiceCapability{Type: &csipb.NodeServiceCapability_Rpc{Rpc: rpc}})
	}
	return out, nil
}

// NodeGetInfo returns the node's id.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.NodeID}, nil
}
