package csi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Complete is what a driver's server does before a call: it refuses a request without a field that CSI requires.
func Complete(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if field := lacks(r); field != "" {
		return nil, status.Errorf(codes.InvalidArgument, "the request has no %s", field)
	}
	return handle(ctx, r)
}

func lacks(r any) protoreflect.Name {
	message, ok := r.(proto.Message)
	if !ok {
		return ""
	}
	m := message.ProtoReflect()
	for _, field := range requiredFields()[m.Descriptor().Name()] {
		if !m.Has(m.Descriptor().Fields().ByName(field)) {
			return field
		}
	}
	return ""
}

// requiredFields returns the fields that the specification calls required, of the requests that some driver here
// serves. What makes something new is not among them: drivers have more to say of its name and of what it is made for.
func requiredFields() map[protoreflect.Name][]protoreflect.Name {
	return map[protoreflect.Name][]protoreflect.Name{
		"DeleteVolumeRequest":               {"volume_id"},
		"ControllerPublishVolumeRequest":    {"volume_id", "node_id", "volume_capability"},
		"ControllerUnpublishVolumeRequest":  {"volume_id"},
		"ValidateVolumeCapabilitiesRequest": {"volume_id", "volume_capabilities"},
		"ControllerExpandVolumeRequest":     {"volume_id", "capacity_range"},
		"ControllerGetVolumeRequest":        {"volume_id"},
		"ControllerModifyVolumeRequest":     {"volume_id"},
		"CreateSnapshotRequest":             {"source_volume_id"},
		"DeleteSnapshotRequest":             {"snapshot_id"},
		"GetSnapshotRequest":                {"snapshot_id"},
		"GetVolumeGroupSnapshotRequest":     {"group_snapshot_id"},
		"DeleteVolumeGroupSnapshotRequest":  {"group_snapshot_id"},
		"NodeStageVolumeRequest":            {"volume_id", "staging_target_path", "volume_capability"},
		"NodeUnstageVolumeRequest":          {"volume_id", "staging_target_path"},
		"NodePublishVolumeRequest":          {"volume_id", "target_path", "volume_capability"},
		"NodeUnpublishVolumeRequest":        {"volume_id", "target_path"},
		"NodeGetVolumeStatsRequest":         {"volume_id", "volume_path"},
		"NodeExpandVolumeRequest":           {"volume_id", "volume_path"},
		"NodeGetVolumeHealthRequest":        {"volume_id"},
	}
}
