package csi

import (
	"encoding/json"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// tokensKey is the key in a volume_context under which service account tokens are passed as JSON;
// errors of drivers have leaked them (CVE-2023-2878).
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// secretsOf returns the values in a request that must never be logged or shown.
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

// tokens returns the tokens in the JSON text and the text as a whole, or only the text if it has another form.
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

// eachText replaces each string in a message, and in messages inside it, by the result of visit.
// name is the key of a map's value and the NAME of a list's NAME=TEXT, otherwise "".
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
			prefix, value := "", l.Get(i).String()
			if name, text, named := strings.Cut(value, "="); named && !isSecret(f) {
				prefix, value = name+"=", text
			}
			if text := visit(f, strings.TrimSuffix(prefix, "="), value); text != value {
				l.Set(i, protoreflect.ValueOfString(prefix+text))
			}
		}
	}
}

// shortestNamed is the length of the shortest value that counts as secret because of its name: "true" and "none" are
// not secrets, and they are parts of many words.
const shortestNamed = 6

// namesSecret says whether the name of a value says that the value is a secret. The name of a Secret object is not one.
func namesSecret(name, value string) bool {
	return len(value) >= shortestNamed && isSecretName(name)
}

func isSecretName(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, "name") || strings.HasSuffix(name, "namespace") {
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

// isPrivate says whether a field may hold confidential data although CSI does not mark it as
// secret: contexts hold tokens and storage addresses, mount flags hold passwords.
func isPrivate(f protoreflect.FieldDescriptor) bool {
	return slices.Contains([]protoreflect.Name{"volume_context", "publish_context", "mount_flags"}, f.Name())
}
