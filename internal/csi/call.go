package csi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"volplane.dev/volplane/internal/redact"
)

// Call is a call that has ended, as it may be shown to people: nothing in it is a secret.
type Call struct {
	Time time.Time `json:"time"`
	// Driver is the driver's name, empty if it is not known yet.
	Driver string `json:"driver"`
	// Method is the full name of the gRPC method, "/csi.v1.Node/NodeStageVolume".
	Method string `json:"method"`
	// Seconds is how long the call took, without the wait for the volume's lock.
	Seconds float64 `json:"seconds"`
	// Code is the gRPC code, and Error the message that came with it.
	Code  string `json:"code"`
	Error string `json:"error,omitempty"`
	// Request and Answer are JSON with the names of the CSI specification, or a JSON string that says why they are not
	// shown. There is no answer if the call has failed.
	Request json.RawMessage `json:"request,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"`
}

// maxShown is the size, in bytes, up to which a request or an answer is shown.
const maxShown = 32 << 10

// Methods returns the full names of all methods of CSI that have one request and one answer, in the order of the
// specification.
func Methods() []string {
	var out []string
	services := csipb.File_csi_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if m := methods.Get(j); !m.IsStreamingClient() && !m.IsStreamingServer() {
				out = append(out, fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name()))
			}
		}
	}
	return out
}

func withTrace(show func(Call), m *Memory, name func() string) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			call := Call{
				Time: start.UTC(), Driver: name(), Method: method, Seconds: time.Since(start).Seconds(), Code: Code(err).String(),
				Request: m.Shown(req),
			}
			if err == nil {
				call.Answer = m.Shown(reply)
			} else {
				call.Error = line(status.Convert(err).Message())
			}
			show(call)
			return err
		}
	}
}

// NewMessages returns an empty request and an empty answer of a method, of which method is the full name; nil if CSI has
// no such method.
func NewMessages(method string) (request, answer proto.Message) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	m, ok := found.(protoreflect.MethodDescriptor)
	if err != nil || !ok || !slices.Contains(Methods(), method) {
		return nil, nil
	}
	return newMessage(m.Input()), newMessage(m.Output())
}

// FillSecrets sets the fields of a request that the specification marks as secret, and says whether there are any.
func FillSecrets(request proto.Message, secrets map[string]string) bool {
	m := request.ProtoReflect()
	fields, filled := m.Descriptor().Fields(), false
	for i := range fields.Len() {
		if f := fields.Get(i); f.IsMap() && isSecret(f) {
			all := m.Mutable(f).Map()
			for key, value := range secrets {
				all.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
			}
			filled = true
		}
	}
	return filled
}

// HasSecrets says whether a request has a secret in it.
func HasSecrets(request proto.Message) bool { return len(secretsOf(request)) > 0 }

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		return t.New().Interface()
	}
	return dynamicpb.NewMessage(d) // the types of CSI are all known, and so are those of others
}

// Shown returns a request or an answer as JSON without secrets, always in the same form. Of what the specification marks
// as secret, of contexts and mount flags, and of what is named as a secret is, the names are there and the values are
// not; all other texts are without the secrets that are known, which those of a request are from now on.
func (m *Memory) Shown(message any) json.RawMessage {
	m.secrets.Add(secretsOf(message)...)
	return shown(message, m.secrets.Hide)
}

func shown(message any, hide func(text string) string) json.RawMessage {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	if n := proto.Size(m); n > maxShown {
		return json.RawMessage(fmt.Sprintf(`"%d bytes are not shown"`, n))
	}
	m = proto.Clone(m)
	hideTexts(m.ProtoReflect(), hide)
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	var out bytes.Buffer
	// protojson puts blanks where they are not expected, so that nobody relies on it.
	if err != nil || json.Compact(&out, text) != nil || out.Len() > 2*maxShown {
		return json.RawMessage(`"not shown"`)
	}
	return out.Bytes()
}

func hideTexts(m protoreflect.Message, hide func(string) string) {
	eachText(m, func(f protoreflect.FieldDescriptor, name, text string) string {
		if text != "" && (isSecret(f) || isPrivate(f) || isSecretName(name)) {
			return redact.Hidden
		}
		return hide(text)
	})
	hideNames(m, hide)
}

// hideNames removes secrets from the keys of maps, and from the names in lists of NAME=TEXT.
func hideNames(m protoreflect.Message, hide func(string) string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind {
				hideKeys(v.Map(), hide)
			}
		case f.IsList():
			hideInList(f, v.List(), hide)
		case f.Message() != nil:
			hideNames(v.Message(), hide)
		}
		return true
	})
}

func hideInList(f protoreflect.FieldDescriptor, l protoreflect.List, hide func(string) string) {
	for i := range l.Len() {
		if f.Message() != nil {
			hideNames(l.Get(i).Message(), hide)
		} else if name, text, named := strings.Cut(l.Get(i).String(), "="); named && f.Kind() == protoreflect.StringKind {
			l.Set(i, protoreflect.ValueOfString(hide(name)+"="+text))
		}
	}
}

func hideKeys(m protoreflect.Map, hide func(string) string) {
	shown := map[string]protoreflect.Value{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if key := hide(k.String()); key != k.String() {
			shown[key] = v
			m.Clear(k)
		}
		return true
	})
	for key, v := range shown {
		m.Set(protoreflect.ValueOfString(key).MapKey(), v)
	}
}
