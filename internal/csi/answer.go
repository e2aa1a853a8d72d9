package csi

import (
	"context"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/volume"
)

// Limits in bytes. The CSI specification has 128 for identifiers and 4096 for
// maps; drivers in use have longer ones, made of the paths of a cloud's
// resources, and Kubernetes takes them, but of nodes' names no longer ones.
const (
	maxString = 1 << 10
	maxNodeID = 256
	maxText   = 4 << 10
	maxMap    = 64 << 10
)

// madeHere are the beginnings of messages that gRPC makes on our side when it
// cannot read an answer. The codes look like a final no of the driver, which
// may have done its work nevertheless.
var madeHere = []string{
	"grpc: received ",
	"grpc: failed to unmarshal the received message",
	"cardinality violation",
	"stream terminated by RST_STREAM",
	"server closed the stream without sending trailers",
	"transport: malformed grpc-status",
	"malformed header",
	"unexpected HTTP status code",
}

// checkAnswer refuses an answer that breaks the specification. What the call
// did is not known then.
func checkAnswer(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		if err := next(ctx, method, req, reply, opts...); err != nil {
			return unreadable(err)
		}
		if problem := answerProblem(reply); problem != "" {
			return refuse(codes.Unknown, ErrAnswer, problem)
		}
		return nil
	}
}

func unreadable(err error) error {
	s, ok := status.FromError(err)
	if !ok || OutcomeOf(err) != volume.Failed {
		return err
	}
	for _, begin := range madeHere {
		if strings.HasPrefix(s.Message(), begin) {
			return refuse(codes.Unknown, ErrAnswer, line(s.Message()))
		}
	}
	return err
}

// answerProblem returns what is wrong with an answer, or "".
func answerProblem(reply any) string {
	missing := ""
	switch r := reply.(type) {
	case *csipb.CreateVolumeResponse:
		missing = required("volume id", r.GetVolume().GetVolumeId())
	case *csipb.ControllerGetVolumeResponse:
		missing = required("volume id", r.GetVolume().GetVolumeId())
	case *csipb.CreateSnapshotResponse:
		missing = required("snapshot id", r.GetSnapshot().GetSnapshotId())
	case *csipb.NodeGetInfoResponse:
		missing = required("node id", r.GetNodeId())
	}
	if m, ok := reply.(proto.Message); ok && missing == "" {
		return messageProblem(m.ProtoReflect())
	}
	return missing
}

func required(what, value string) string {
	if value == "" {
		return "no " + what
	}
	return ""
}

// messageProblem looks for a field that is too long, a word with control
// characters, or what is negative where CSI only knows sizes and counts.
func messageProblem(m protoreflect.Message) string {
	problem := ""
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			problem = mapProblem(f, v.Map())
		case f.IsList():
			for i := 0; i < v.List().Len() && problem == ""; i++ {
				problem = valueProblem(f, v.List().Get(i))
			}
		default:
			problem = valueProblem(f, v)
		}
		return problem == ""
	})
	return problem
}

func valueProblem(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return messageProblem(v.Message())
	case protoreflect.StringKind:
		if n := len(v.String()); n > limit(f) {
			return fmt.Sprintf("%s of %d bytes, %d are allowed", f.Name(), n, limit(f))
		}
		if oneLine(f) {
			return controlProblem(f, v.String())
		}
	case protoreflect.Int64Kind, protoreflect.Int32Kind:
		if v.Int() < 0 && f.Parent().FullName() != "google.protobuf.Timestamp" {
			return "negative " + string(f.FullName().Parent().Name()) + "." + string(f.Name())
		}
	}
	return ""
}

func limit(f protoreflect.FieldDescriptor) int {
	switch f.Name() {
	case "node_id":
		return maxNodeID
	case "message":
		// It is text for people.
		return maxText
	default:
		return maxString
	}
}

func mapProblem(f protoreflect.FieldDescriptor, m protoreflect.Map) string {
	size, problem := 0, ""
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		size += len(k.String()) + len(v.String())
		words := k.String()
		if f.Name() == "segments" {
			// They become labels of Nodes.
			words += v.String()
		}
		problem = controlProblem(f, words)
		return size <= maxMap && problem == ""
	})
	if size > maxMap {
		return fmt.Sprintf("%s of more than %d bytes", f.Name(), maxMap)
	}
	return problem
}
