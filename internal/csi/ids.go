package csi

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkIDs refuses requests with ids that no driver can have returned: a user wrote them into an object by hand. Calls
// that undo something are let through, because such an id may have been accepted before this check existed.
func checkIDs(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		if m, ok := req.(proto.Message); ok && !isUndo(method) {
			if problem := idProblem(m.ProtoReflect()); problem != "" {
				return refuse(codes.InvalidArgument, ErrID, problem)
			}
		}
		return next(ctx, method, req, reply, opts...)
	}
}

func isUndo(method string) bool {
	name := method[strings.LastIndex(method, "/")+1:]
	return strings.Contains(name, "Unpublish") || strings.Contains(name, "Unstage") || strings.HasPrefix(name, "Delete")
}

// idProblem checks all ids in a request, including those of the volume's source.
func idProblem(m protoreflect.Message) string {
	problem := ""
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsList() && f.Kind() == protoreflect.StringKind && strings.HasSuffix(string(f.Name()), "_ids"):
			for i := 0; i < v.List().Len() && problem == ""; i++ {
				problem = controlProblem(f, v.List().Get(i).String())
			}
		case f.IsMap() || f.IsList():
		case f.Kind() == protoreflect.MessageKind:
			problem = idProblem(v.Message())
		case f.Kind() == protoreflect.StringKind && strings.HasSuffix(string(f.Name()), "_id"):
			problem = controlProblem(f, v.String())
		}
		return problem == ""
	})
	return problem
}

// isSingleLine says whether a field of an answer must be a single line: such fields become parts of
// object names, log lines and map keys. Page tokens are opaque, and Dial checks the driver's name.
func isSingleLine(f protoreflect.FieldDescriptor) bool {
	return f.Name() != "message" && f.Name() != "name" && !strings.HasSuffix(string(f.Name()), "_token")
}

// controlProblem describes the first control character of a value; newline and NUL are control
// characters, too. It returns "" if there is none.
func controlProblem(f protoreflect.FieldDescriptor, value string) string {
	i := strings.IndexFunc(value, unicode.IsControl)
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s with the control character %U at byte %d", f.Name(), []rune(value[i:])[0], i)
}

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
