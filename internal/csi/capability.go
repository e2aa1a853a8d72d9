package csi

import csipb "github.com/container-storage-interface/spec/lib/go/csi"

// PluginCapabilities holds the capabilities of a driver's identity service.
type PluginCapabilities struct {
	ControllerService, AccessibilityConstraints, OnlineExpansion, OfflineExpansion bool
}

// ControllerCapabilities holds the capabilities of a driver's controller service.
type ControllerCapabilities struct {
	CreateDelete, PublishUnpublish, ListVolumes, ListVolumesPublishedNodes, GetCapacity, Snapshot, ListSnapshots,
	Clone, PublishReadonly, Expand, GetVolume, Modify, SingleNodeMultiWriter bool
}

// NodeCapabilities holds the capabilities of a driver's node service.
type NodeCapabilities struct{ StageUnstage, Expand, Stats, MountGroup, SingleNodeMultiWriter bool }

func pluginCapabilities(r *csipb.GetPluginCapabilitiesResponse) PluginCapabilities {
	var out PluginCapabilities
	for _, c := range r.GetCapabilities() {
		switch c.GetService().GetType() {
		case csipb.PluginCapability_Service_CONTROLLER_SERVICE:
			out.ControllerService = true
		case csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			out.AccessibilityConstraints = true
		}
		switch c.GetVolumeExpansion().GetType() {
		case csipb.PluginCapability_VolumeExpansion_ONLINE:
			out.OnlineExpansion = true
		case csipb.PluginCapability_VolumeExpansion_OFFLINE:
			out.OfflineExpansion = true
		}
	}
	return out
}

func controllerCapabilities(r *csipb.ControllerGetCapabilitiesResponse) ControllerCapabilities {
	var out ControllerCapabilities
	fields := map[csipb.ControllerServiceCapability_RPC_Type]*bool{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:         &out.CreateDelete,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:     &out.PublishUnpublish,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES:                 &out.ListVolumes,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: &out.ListVolumesPublishedNodes,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY:                 &out.GetCapacity,
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:       &out.Snapshot,
		csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:               &out.ListSnapshots,
		csipb.ControllerServiceCapability_RPC_CLONE_VOLUME:                 &out.Clone,
		csipb.ControllerServiceCapability_RPC_PUBLISH_READONLY:             &out.PublishReadonly,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME:                &out.Expand,
		csipb.ControllerServiceCapability_RPC_GET_VOLUME:                   &out.GetVolume,
		csipb.ControllerServiceCapability_RPC_MODIFY_VOLUME:                &out.Modify,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:     &out.SingleNodeMultiWriter,
	}
	for _, c := range r.GetCapabilities() {
		if f := fields[c.GetRpc().GetType()]; f != nil {
			*f = true
		}
	}
	return out
}

func nodeCapabilities(r *csipb.NodeGetCapabilitiesResponse) NodeCapabilities {
	var out NodeCapabilities
	fields := map[csipb.NodeServiceCapability_RPC_Type]*bool{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:     &out.StageUnstage,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:            &out.Expand,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:         &out.Stats,
		csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:       &out.MountGroup,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: &out.SingleNodeMultiWriter,
	}
	for _, c := range r.GetCapabilities() {
		if f := fields[c.GetRpc().GetType()]; f != nil {
			*f = true
		}
	}
	return out
}
