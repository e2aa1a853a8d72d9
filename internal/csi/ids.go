package csi

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkIDs keeps ids that no driver can have given from a driver: they come from
// objects that somebody wrote by hand. The way back stays open, for whatever came
// in before this was looked at.
func checkIDs(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		if m, ok := req.(proto.Message); ok && !wayBack(method) {
			if problem := idProblem(m.ProtoReflect()); problem != "" {
				return refuse(codes.InvalidArgument, ErrID, problem)
			}
		}
		return next(ctx, method, req, reply, opts...)
	}
}

func wayBack(method string) bool {
	name := method[strings.LastIndex(method, "/")+1:]
	return strings.Contains(name, "Unpublish") || strings.Contains(name, "Unstage") || strings.HasPrefix(name, "Delete")
}

// idProblem looks for ids in a request, also of what a volume is made from.
func idProblem(m protoreflect.Message) string {
	problem := ""
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
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

// oneLine says whether a field of an answer is a word and not a text: it ends up in
// names, lines, and the keys of tables. What a list goes on with is opaque, and a
// driver's name is looked at when it is dialed.
func oneLine(f protoreflect.FieldDescriptor) bool {
	return f.Name() != "message" && f.Name() != "name" && !strings.HasSuffix(string(f.Name()), "_token")
}

// controlProblem names the first control character of a value, the end of a line
// and NUL among them.
func controlProblem(f protoreflect.FieldDescriptor, value string) string {
	i := strings.IndexFunc(value, unicode.IsControl)
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%s with the control character %U at byte %d", f.Name(), []rune(value[i:])[0], i)
}
