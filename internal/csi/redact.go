package csi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// hidden stands where a secret was.
const hidden = "***"

// tokensKey is the entry of a volume_context that holds service account tokens
// as JSON; they leaked through errors before (CVE-2023-2878).
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// hideSecrets takes the request's secrets out of the driver's error: drivers
// quote what they were given.
func hideSecrets(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, opts...)
		if err == nil {
			return nil
		}
		if _, ours := err.(*refusal); ours { //nolint:errorlint // nothing wraps it here, and what wraps it must be looked at
			return err
		}
		secrets := secretsOf(req)
		if len(secrets) == 0 {
			return err
		}
		s := status.Convert(err)
		pairs := make([]string, 0, 2*len(secrets))
		for _, secret := range secrets {
			pairs = append(pairs, secret, hidden)
		}
		// A status' details may quote secrets too; CSI wants them empty.
		return status.Error(s.Code(), strings.NewReplacer(pairs...).Replace(s.Message()))
	}
}

// secretsOf returns the texts that must not leave a request, in the forms in
// which drivers quote them, the longest first: one may be a part of another.
func secretsOf(req any) []string {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	var out []string
	add := func(secret string) {
		trimmed := strings.TrimSpace(secret)
		if trimmed == "" {
			return
		}
		quoted, err := json.Marshal(trimmed)
		if err == nil {
			out = append(out, strings.Trim(string(quoted), `"`))
		}
		out = append(out, secret, trimmed, base64.StdEncoding.EncodeToString([]byte(secret)))
	}
	secretFields(m.ProtoReflect(), func(_ protoreflect.FieldDescriptor, v protoreflect.Value) { add(v.String()) })
	if c, ok := req.(interface{ GetVolumeContext() map[string]string }); ok {
		for _, token := range tokens(c.GetVolumeContext()[tokensKey]) {
			add(token)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(out)
}

// tokens returns the tokens of a volume_context, and the text as a whole when
// it has another form than expected.
func tokens(text string) []string {
	out := []string{text}
	var byAudience map[string]struct{ Token string }
	if json.Unmarshal([]byte(text), &byAudience) == nil {
		for _, t := range byAudience {
			out = append(out, t.Token)
		}
	}
	return out
}

// secretFields visits the values of all fields that CSI marks as secret.
func secretFields(m protoreflect.Message, visit func(protoreflect.FieldDescriptor, protoreflect.Value)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isSecret(f) && f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				visit(f, v)
				return true
			})
		case isSecret(f) && f.IsList():
			for i := range v.List().Len() {
				visit(f, v.List().Get(i))
			}
		case isSecret(f):
			visit(f, v)
		case f.Message() != nil && !f.IsMap() && !f.IsList():
			secretFields(v.Message(), visit)
		}
		return true
	})
}

func isSecret(f protoreflect.FieldDescriptor) bool {
	secret, ok := proto.GetExtension(f.Options(), csipb.E_CsiSecret).(bool)
	return ok && secret
}

// isPrivate says whether a field may hold what is nobody's business, although
// CSI does not mark it: contexts hold tokens and addresses of storage, mount
// flags passwords.
func isPrivate(f protoreflect.FieldDescriptor) bool {
	return slices.Contains([]protoreflect.Name{"volume_context", "publish_context", "mount_flags"}, f.Name())
}

// loggable is a request as it may be logged; the work is done only when
// somebody wants the line.
type loggable struct{ req any }

// LogValue returns the request as JSON without values of secrets and contexts.
func (l loggable) LogValue() slog.Value {
	m, ok := l.req.(proto.Message)
	if !ok {
		return slog.StringValue("?")
	}
	m = proto.Clone(m)
	strip(m.ProtoReflect())
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return slog.StringValue("?")
	}
	return slog.StringValue(line(string(text)))
}

// strip replaces the values of secret and private fields; keys stay.
func strip(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isSecret(f) || isPrivate(f):
			stripField(m, f, v)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				strip(v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsMap() && !f.IsList():
			strip(v.Message())
		}
		return true
	})
}

func stripField(m protoreflect.Message, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	stars := protoreflect.ValueOfString(hidden)
	switch {
	case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
		v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
			v.Map().Set(k, stars)
			return true
		})
	case f.IsList() && f.Kind() == protoreflect.StringKind:
		for i := range v.List().Len() {
			v.List().Set(i, stars)
		}
	case f.Kind() == protoreflect.StringKind && !f.IsMap() && !f.IsList():
		m.Set(f, stars)
	default:
		m.Clear(f)
	}
}
