package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// Limits in bytes. The CSI specification allows 128 for identifiers and 4096 for maps. Drivers in
// use exceed that, because their ids contain resource paths of a cloud, and Kubernetes accepts
// them, except for node ids longer than maxNodeID.
const (
	maxString = 1 << 10
	maxNodeID = 256
	maxText   = 4 << 10
	maxMap    = 64 << 10
)

// localErrors are the prefixes of messages that gRPC's client creates when it cannot read an answer. Their codes look
// like a final error of the driver, although the driver may have done the work.
var localErrors = []string{ //nolint:gochecknoglobals // a table of constants
	"grpc: received ",
	"grpc: failed to unmarshal the received message",
	"cardinality violation",
	"stream terminated by RST_STREAM",
	"server closed the stream without sending trailers",
	"transport: malformed grpc-status",
	"malformed header",
	"unexpected HTTP status code",
}

// checkAnswer replaces an answer that violates the specification by ErrAnswer. The outcome of the call is unknown then.
func checkAnswer(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		if err := next(ctx, method, req, reply, opts...); err != nil {
			return checkError(err)
		}
		problem := answerProblem(reply)
		if problem == "" {
			problem = groupProblem(req, reply)
		}
		if problem != "" {
			return refuse(codes.Unknown, ErrAnswer, problem)
		}
		return nil
	}
}

func checkError(err error) error {
	s, ok := status.FromError(err)
	if !ok || OutcomeOf(err) != volume.Failed {
		return err
	}
	for _, prefix := range localErrors {
		if strings.HasPrefix(s.Message(), prefix) {
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
	case *csipb.GetSnapshotResponse:
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

// messageProblem looks for a field that is too long, a single-line field with control characters,
// or a negative number where CSI only has sizes and counts.
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
		if isSingleLine(f) {
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
		// The text is for users, not an identifier.
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
			// The values become labels of Nodes, like the keys.
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

// OutcomeOf says whether a call that ended with err took effect. After Canceled, DeadlineExceeded, Unavailable,
// Aborted, an unusable answer, a code that gRPC does not define, and an error that is not a gRPC status, that is
// Unknown; any other code is a final error of the driver. Upstream's sidecars have the same rule for DeleteVolume and
// expansion. After CreateVolume not every final error proves that no volume exists: see internal/decide/provision.
func OutcomeOf(err error) volume.Outcome {
	if err == nil {
		return volume.Done
	}
	if _, ok := status.FromError(err); !ok || errors.Is(err, ErrAnswer) {
		return volume.Unknown
	}
	switch code := Code(err); {
	case code > codes.Unauthenticated:
		return volume.Unknown
	case code == codes.Canceled, code == codes.DeadlineExceeded, code == codes.Unavailable, code == codes.Aborted:
		return volume.Unknown
	}
	return volume.Failed
}

// AnswerOf returns the end of a call as the facts that decisions judge.
func AnswerOf(err error) volume.Answer {
	a := volume.Answer{Outcome: OutcomeOf(err), Text: Describe(err)}
	if s, ok := status.FromError(err); ok {
		a.Code, a.Number = s.Code().String(), int32(s.Code()) //nolint:gosec // gRPC's codes are small
		a.Gone = s.Code() == codes.Unavailable && volume.DriverGone(a.Text)
	} else {
		a.NoSecret = errors.Is(err, volume.ErrNoSecret)
	}
	return a
}

// Code returns the gRPC code of an error, wrapped or not: OK for nil, and Unknown for an error that
// is not a gRPC status.
func Code(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// maxMessage is the length limit, in bytes, of a driver's text in events and status.
const maxMessage = 512

// Describe returns a driver's error as one short line for events and status. The errors of a Driver hold no secrets.
func Describe(err error) string {
	if err == nil {
		return ""
	}
	s := status.Convert(err)
	return s.Code().String() + ": " + line(s.Message())
}

// line makes one short line of printable text.
func line(text string) string { return redact.Line(text, maxMessage) }

// Errors that are made here and not by a driver.
var (
	// ErrName says that CSI does not allow the driver's name. It is final.
	ErrName = errors.New("driver's name is not usable")
	// ErrOtherDriver says that a driver with another name responds. It ends when the registered driver returns.
	ErrOtherDriver = errors.New("another driver answers at this socket")
	// ErrAnswer says that the driver's answer is unusable. The call may have taken effect; it may be repeated.
	ErrAnswer = errors.New("the driver's answer breaks the CSI specification")
	// ErrHeld says that the function of WithHold did not allow the call, so the driver was not called. It may be repeated.
	ErrHeld = errors.New("the driver was not called")
	// ErrID says that an id has control characters, so no driver can have returned it. It is final.
	ErrID = errors.New("id is not usable")
	// ErrTerm says that the term of Within is over, so the driver was not called. The holder of the next term may call it.
	ErrTerm = errors.New("the driver is no longer called from here")
	// ErrBusy says that the call timed out while it waited for an earlier call for the volume. It may be repeated.
	ErrBusy = errors.New("an earlier call for the volume has not ended yet")
	// ErrPlanted says that this failure was planted for a drill or a test. The code says what became of the call.
	ErrPlanted = errors.New("this fault is planted")
)

// refusal is an error that was made here and not by the driver. It is also a gRPC status, which lets OutcomeOf handle
// both. Its text contains nothing of the request.
type refusal struct {
	code   codes.Code
	reason error
	text   string
}

func refuse(code codes.Code, reason error, text string) error {
	return &refusal{code: code, reason: reason, text: text}
}

// Planted returns the error of a call that fails because a fault was planted.
func Planted(code codes.Code, text string) error { return refuse(code, ErrPlanted, text) }

// Error returns the reason and, if there are any, details.
func (r *refusal) Error() string {
	if r.text == "" {
		return r.reason.Error()
	}
	return r.reason.Error() + ": " + r.text
}

// Unwrap returns the reason.
func (r *refusal) Unwrap() error { return r.reason }

// GRPCStatus returns the error as a gRPC status; package status calls it.
func (r *refusal) GRPCStatus() *status.Status { return status.New(r.code, r.Error()) }
