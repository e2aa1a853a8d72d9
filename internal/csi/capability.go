package csi

import (
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// PluginCapabilities holds the capabilities of a driver's identity service.
type PluginCapabilities struct {
	ControllerService, GroupController, AccessibilityConstraints, SnapshotMetadata, SnapshotAccessibilityConstraints,
	OnlineExpansion, OfflineExpansion bool
}

// ControllerCapabilities holds the capabilities of a driver's controller service.
type ControllerCapabilities struct {
	CreateDelete, PublishUnpublish, ListVolumes, ListVolumesPublishedNodes, GetCapacity, Snapshot, ListSnapshots,
	GetSnapshot, Clone, PublishReadonly, Expand, GetVolume, Modify, SingleNodeMultiWriter, GetVolumeHealth,
	ListVolumeHealth bool
	// VolumeCondition is a capability of drivers of CSI up to 1.12.
	VolumeCondition bool
}

// GroupCapabilities holds the capabilities of a driver's group controller service.
type GroupCapabilities struct{ Snapshot bool }

// NodeCapabilities holds the capabilities of a driver's node service.
type NodeCapabilities struct {
	StageUnstage, Expand, Stats, MountGroup, SingleNodeMultiWriter, VolumeHealth, StorageHealth bool
	// VolumeCondition is a capability of drivers of CSI up to 1.12.
	VolumeCondition bool
}

func (p *PluginCapabilities) services() map[csipb.PluginCapability_Service_Type]*bool {
	return map[csipb.PluginCapability_Service_Type]*bool{
		csipb.PluginCapability_Service_CONTROLLER_SERVICE:                 &p.ControllerService,
		csipb.PluginCapability_Service_GROUP_CONTROLLER_SERVICE:           &p.GroupController,
		csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:   &p.AccessibilityConstraints,
		csipb.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE:          &p.SnapshotMetadata,
		csipb.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS: &p.SnapshotAccessibilityConstraints,
	}
}

func (p *PluginCapabilities) expansions() map[csipb.PluginCapability_VolumeExpansion_Type]*bool {
	return map[csipb.PluginCapability_VolumeExpansion_Type]*bool{
		csipb.PluginCapability_VolumeExpansion_ONLINE:  &p.OnlineExpansion,
		csipb.PluginCapability_VolumeExpansion_OFFLINE: &p.OfflineExpansion,
	}
}

func (c *ControllerCapabilities) calls() map[csipb.ControllerServiceCapability_RPC_Type]*bool {
	return map[csipb.ControllerServiceCapability_RPC_Type]*bool{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:         &c.CreateDelete,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:     &c.PublishUnpublish,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES:                 &c.ListVolumes,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: &c.ListVolumesPublishedNodes,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY:                 &c.GetCapacity,
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:       &c.Snapshot,
		csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:               &c.ListSnapshots,
		csipb.ControllerServiceCapability_RPC_GET_SNAPSHOT:                 &c.GetSnapshot,
		csipb.ControllerServiceCapability_RPC_CLONE_VOLUME:                 &c.Clone,
		csipb.ControllerServiceCapability_RPC_PUBLISH_READONLY:             &c.PublishReadonly,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME:                &c.Expand,
		csipb.ControllerServiceCapability_RPC_GET_VOLUME:                   &c.GetVolume,
		csipb.ControllerServiceCapability_RPC_MODIFY_VOLUME:                &c.Modify,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:     &c.SingleNodeMultiWriter,
		csipb.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:            &c.GetVolumeHealth,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:           &c.ListVolumeHealth,
		controllerVolumeCondition:                                          &c.VolumeCondition,
	}
}

func (g *GroupCapabilities) calls() map[csipb.GroupControllerServiceCapability_RPC_Type]*bool {
	return map[csipb.GroupControllerServiceCapability_RPC_Type]*bool{
		csipb.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT: &g.Snapshot,
	}
}

func (n *NodeCapabilities) calls() map[csipb.NodeServiceCapability_RPC_Type]*bool {
	return map[csipb.NodeServiceCapability_RPC_Type]*bool{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:     &n.StageUnstage,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:            &n.Expand,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:         &n.Stats,
		csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:       &n.MountGroup,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: &n.SingleNodeMultiWriter,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH:        &n.VolumeHealth,
		csipb.NodeServiceCapability_RPC_GET_STORAGE_HEALTH:       &n.StorageHealth,
		nodeVolumeCondition: &n.VolumeCondition,
	}
}

// set sets the field of a capability; unknown capabilities are ignored.
func set[K comparable](fields map[K]*bool, kind K) {
	if f := fields[kind]; f != nil {
		*f = true
	}
}

// present returns the capabilities whose fields are set, in the order of their numbers.
func present[K ~int32](fields map[K]*bool) []K {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(kind K) bool { return !*fields[kind] })
}

func pluginCapabilities(r *csipb.GetPluginCapabilitiesResponse) (p PluginCapabilities) {
	for _, c := range r.GetCapabilities() {
		set(p.services(), c.GetService().GetType())
		set(p.expansions(), c.GetVolumeExpansion().GetType())
	}
	return p
}

// setCalls sets the fields of the capabilities in an answer.
func setCalls[K comparable, T interface{ GetType() K }, C interface{ GetRpc() T }](fields map[K]*bool, all []C) {
	for _, c := range all {
		set(fields, c.GetRpc().GetType())
	}
}

// Answer returns the answer of a driver with these capabilities.
func (p PluginCapabilities) Answer() *csipb.GetPluginCapabilitiesResponse {
	out := &csipb.GetPluginCapabilitiesResponse{}
	for _, t := range present(p.services()) {
		out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}},
		})
	}
	for _, t := range present(p.expansions()) {
		out.Capabilities = append(out.Capabilities, &csipb.PluginCapability{Type: &csipb.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: t},
		}})
	}
	return out
}

// Answer returns the answer of a driver with these capabilities.
func (c ControllerCapabilities) Answer() *csipb.ControllerGetCapabilitiesResponse {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range present(c.calls()) {
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out
}

// Answer returns the answer of a driver with these capabilities.
func (g GroupCapabilities) Answer() *csipb.GroupControllerGetCapabilitiesResponse {
	out := &csipb.GroupControllerGetCapabilitiesResponse{}
	for _, t := range present(g.calls()) {
		out.Capabilities = append(out.Capabilities, &csipb.GroupControllerServiceCapability{
			Type: &csipb.GroupControllerServiceCapability_Rpc{Rpc: &csipb.GroupControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out
}

// Answer returns the answer of a driver with these capabilities.
func (n NodeCapabilities) Answer() *csipb.NodeGetCapabilitiesResponse {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range present(n.calls()) {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out
}
