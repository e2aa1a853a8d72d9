package csi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

	"volplane.dev/volplane/internal/process/redact"
)

// Call is a call that has ended, in a form that may be shown: nothing in it is secret.
type Call struct {
	Time time.Time `json:"time"`
	// Driver is the driver's name, empty if it is unknown.
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

// NewMessages returns an empty request and an empty answer of the method with a full name; nil if CSI has no such
// method.
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
	return dynamicpb.NewMessage(d) // all types of CSI are known, and so are those of other services
}

// Shown returns a request or an answer as JSON without secrets, always in the same form. Fields that the specification
// marks as secret, contexts, mount flags, and values whose names say that they are secret keep their names but not
// their values; all other texts are redacted of the known secrets, to which those of a request are added here.
func (m *Memory) Shown(message any) json.RawMessage {
	m.secrets.Add(secretsOf(message)...)
	return shown(message, &m.secrets)
}

func shown(message any, secrets *redact.Secrets) json.RawMessage {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	if n := proto.Size(m); n > maxShown {
		return json.RawMessage(fmt.Sprintf(`"%d bytes are not shown"`, n))
	}
	m = proto.Clone(m)
	hideTexts(m.ProtoReflect(), secrets)
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	var out bytes.Buffer
	// protojson inserts spaces at random, on purpose, to keep callers from relying on its output.
	if err != nil || json.Compact(&out, text) != nil || out.Len() > 2*maxShown {
		return json.RawMessage(`"not shown"`)
	}
	return out.Bytes()
}

// hideTexts replaces all texts of a message by their redacted forms.
func hideTexts(m protoreflect.Message, secrets *redact.Secrets) {
	var texts, own []string
	eachText(m, func(f protoreflect.FieldDescriptor, name, text string) string {
		if text != "" && (isSecret(f) || isPrivate(f) || isSecretName(name)) {
			return redact.Hidden
		}
		if isOwn(f) {
			own = append(own, text)
		} else {
			texts = append(texts, text)
		}
		return text
	})
	eachName(m, func(name string) string {
		own = append(own, name)
		return name
	})
	hidden := hideAll(own, secrets.HidePlain)
	maps.Copy(hidden, hideAll(texts, secrets.Hide))
	eachText(m, func(_ protoreflect.FieldDescriptor, _, text string) string {
		if text == redact.Hidden {
			return text
		}
		return hidden[text]
	})
	eachName(m, func(name string) string { return hidden[name] })
}

// isOwn says whether a field has a text that volplane has made: a path or the name of a volume. Secrets do not occur
// encoded in these or in names of parameters, and searching for all encodings is the largest cost of a trace.
func isOwn(f protoreflect.FieldDescriptor) bool {
	return f.Name() == "name" || f.Name() == "fs_type" || strings.HasSuffix(string(f.Name()), "_path")
}

// hideAll returns what hide makes of texts. It passes many texts to one call, because searching for secrets in all
// encodings costs more per text than per byte.
func hideAll(texts []string, hide func(string) string) map[string]string {
	const border = "\x00\n\x00"
	out := map[string]string{}
	slices.Sort(texts)
	texts = slices.Compact(texts)
	for len(texts) > 0 {
		n, size := 1, len(texts[0])
		for n < len(texts) && size+len(border)+len(texts[n]) <= redact.MaxText {
			size += len(border) + len(texts[n])
			n++
		}
		hidden := strings.Split(hide(strings.Join(texts[:n], border)), border)
		for i, text := range texts[:n] {
			if len(hidden) == n {
				out[text] = hidden[i]
			} else {
				out[text] = hide(text)
			}
		}
		texts = texts[n:]
	}
	return out
}

// eachName replaces each key of a map, and each NAME in lists of NAME=TEXT, by the result of visit.
func eachName(m protoreflect.Message, visit func(string) string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind {
				eachKey(v.Map(), visit)
			}
		case f.IsList():
			eachNameInList(f, v.List(), visit)
		case f.Message() != nil:
			eachName(v.Message(), visit)
		}
		return true
	})
}

func eachNameInList(f protoreflect.FieldDescriptor, l protoreflect.List, visit func(string) string) {
	for i := range l.Len() {
		if f.Message() != nil {
			eachName(l.Get(i).Message(), visit)
		} else if name, text, named := strings.Cut(l.Get(i).String(), "="); named && f.Kind() == protoreflect.StringKind {
			l.Set(i, protoreflect.ValueOfString(visit(name)+"="+text))
		}
	}
}

func eachKey(m protoreflect.Map, visit func(string) string) {
	changed := map[string]protoreflect.Value{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if key := visit(k.String()); key != k.String() {
			changed[key] = v
			m.Clear(k)
		}
		return true
	})
	for key, v := range changed {
		m.Set(protoreflect.ValueOfString(key).MapKey(), v)
	}
}
