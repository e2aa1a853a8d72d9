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
