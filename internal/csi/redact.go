package csi

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"volplane.dev/volplane/internal/redact"
)

// tokensKey is the entry of a volume_context that holds service account tokens
// as JSON; they leaked through errors before (CVE-2023-2878).
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// secretsOf returns the values that must not leave a request.
func secretsOf(req any) []string {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	var out []string
	eachText(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, name, text string) string {
		if isSecret(f) || namesSecret(name, text) {
			out = append(out, text)
		}
		return text
	})
	if c, ok := req.(interface{ GetVolumeContext() map[string]string }); ok {
		out = append(out, tokens(c.GetVolumeContext()[tokensKey])...)
	}
	return slices.DeleteFunc(out, func(secret string) bool { return strings.TrimSpace(secret) == "" })
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

// eachText visits the strings of a message and of those in it, with the names
// that they have in maps and in lists of NAME=TEXT, and puts in their places
// what visit returns.
func eachText(m protoreflect.Message, visit func(f protoreflect.FieldDescriptor, name, text string) string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			eachInMap(f, v.Map(), visit)
		case f.IsList():
			eachInList(f, v.List(), visit)
		case f.Message() != nil:
			eachText(v.Message(), visit)
		case f.Kind() == protoreflect.StringKind:
			if text := visit(f, "", v.String()); text != v.String() {
				m.Set(f, protoreflect.ValueOfString(text))
			}
		}
		return true
	})
}

func eachInMap(
	f protoreflect.FieldDescriptor, m protoreflect.Map,
	visit func(f protoreflect.FieldDescriptor, name, text string) string,
) {
	if f.MapValue().Kind() != protoreflect.StringKind {
		return
	}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if text := visit(f, k.String(), v.String()); text != v.String() {
			m.Set(k, protoreflect.ValueOfString(text))
		}
		return true
	})
}

func eachInList(
	f protoreflect.FieldDescriptor, l protoreflect.List,
	visit func(f protoreflect.FieldDescriptor, name, text string) string,
) {
	for i := range l.Len() {
		switch {
		case f.Message() != nil:
			eachText(l.Get(i).Message(), visit)
		case f.Kind() == protoreflect.StringKind:
			begin, was := "", l.Get(i).String()
			if name, text, named := strings.Cut(was, "="); named && !isSecret(f) {
				begin, was = name+"=", text
			}
			if text := visit(f, strings.TrimSuffix(begin, "="), was); text != was {
				l.Set(i, protoreflect.ValueOfString(begin+text))
			}
		}
	}
}

// shortestNamed is the length of the shortest value that is hidden because of
// its name; "true" and "none" are no secrets, and are a part of many words.
const shortestNamed = 6

// namesSecret says whether a value is a secret by its name. What names a Secret
// is none.
func namesSecret(name, value string) bool {
	name = strings.ToLower(name)
	if len(value) < shortestNamed || strings.HasSuffix(name, "name") || strings.HasSuffix(name, "namespace") {
		return false
	}
	return slices.ContainsFunc(
		[]string{"secret", "password", "passwd", "passphrase", "token", "credential", "key", "chap"}, func(word string) bool {
			return strings.Contains(name, word)
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

// LogValue returns the request as JSON without values of secrets and contexts;
// their names stay.
func (l loggable) LogValue() slog.Value {
	m, ok := l.req.(proto.Message)
	if !ok {
		return slog.StringValue("?")
	}
	m = proto.Clone(m)
	eachText(m.ProtoReflect(), func(f protoreflect.FieldDescriptor, name, text string) string {
		if isSecret(f) || isPrivate(f) || namesSecret(name, text) {
			return redact.Hidden
		}
		return text
	})
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return slog.StringValue("?")
	}
	return slog.StringValue(line(string(text)))
}
