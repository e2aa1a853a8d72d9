package csitest

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Probe says that the driver is ready.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginInfo returns the current name.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.Name(), VendorVersion: d.config.Version}, nil
}

// GetPluginCapabilities returns the configured capabilities.
func (d *Driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	r := &csipb.GetPluginCapabilitiesResponse{}
	service := func(able bool, kind csipb.PluginCapability_Service_Type) {
		if able {
			r.Capabilities = append(r.Capabilities, &csipb.PluginCapability{
				Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: kind}},
			})
		}
	}
	expansion := func(able bool, kind csipb.PluginCapability_VolumeExpansion_Type) {
		if able {
			r.Capabilities = append(r.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{
				VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: kind},
			}})
		}
	}
	p := d.config.Plugin
	service(p.ControllerService, csipb.PluginCapability_Service_CONTROLLER_SERVICE)
	service(p.AccessibilityConstraints, csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	expansion(p.OnlineExpansion, csipb.PluginCapability_VolumeExpansion_ONLINE)
	expansion(p.OfflineExpansion, csipb.PluginCapability_VolumeExpansion_OFFLINE)
	return r, nil
}

// ControllerGetCapabilities returns the configured capabilities.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	r := &csipb.ControllerGetCapabilitiesResponse{}
	add := func(able bool, kind csipb.ControllerServiceCapability_RPC_Type) {
		if able {
			r.Capabilities = append(r.Capabilities, &csipb.ControllerServiceCapability{
				Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: kind}},
			})
		}
	}
	c := d.config.Controller
	add(c.CreateDelete, csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
	add(c.PublishUnpublish, csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	add(c.ListVolumes, csipb.ControllerServiceCapability_RPC_LIST_VOLUMES)
	add(c.ListVolumesPublishedNodes, csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES)
	add(c.GetCapacity, csipb.ControllerServiceCapability_RPC_GET_CAPACITY)
	add(c.Snapshot, csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
	add(c.ListSnapshots, csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	add(c.Clone, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME)
	add(c.PublishReadonly, csipb.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	add(c.Expand, csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	add(c.GetVolume, csipb.ControllerServiceCapability_RPC_GET_VOLUME)
	add(c.Modify, csipb.ControllerServiceCapability_RPC_MODIFY_VOLUME)
	add(c.SingleNodeMultiWriter, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	return r, nil
}

// NodeGetCapabilities returns the configured capabilities.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	r := &csipb.NodeGetCapabilitiesResponse{}
	add := func(able bool, kind csipb.NodeServiceCapability_RPC_Type) {
		if able {
			r.Capabilities = append(r.Capabilities, &csipb.NodeServiceCapability{
				Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: kind}},
			})
		}
	}
	n := d.config.Node
	add(n.StageUnstage, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	add(n.Expand, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	add(n.Stats, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	add(n.MountGroup, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	add(n.SingleNodeMultiWriter, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	return r, nil
}
