package doctor

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits in bytes. Those of strings, maps and node ids are of the CSI specification; callers cut longer texts off.
const (
	maxString  = 128
	maxNodeID  = 256
	maxMap     = 4 << 10
	maxMessage = 4 << 10
)

// witness sees all that the driver says: each answer and error before anything is taken out of it, and what the
// processes print. It keeps the first thing of each kind that is wrong. It is safe for concurrent use.
type witness struct {
	forms []secretForm

	mu    sync.Mutex
	calls int
	// wrong has what was seen, by the name of the check.
	wrong map[string]complaint
	// tail is the end of what was printed: a secret may come in two parts.
	tail []byte
	// cause is what a runtime has printed of the end of a process.
	cause string
}

// complaint is what is wrong in one or more calls.
type complaint struct {
	first string
	count int
}

// secretForm is one way to write a secret.
type secretForm struct{ key, text string }

// shortSecret is the length of the longest secret that could be in a text by chance.
const shortSecret = 7

// keptWords is how many bytes of what was printed are kept.
const keptWords = 2 << 10

func newWitness(secrets map[string]string) *witness {
	w := &witness{wrong: map[string]complaint{}}
	for _, key := range slices.Sorted(maps.Keys(secrets)) {
		value := secrets[key]
		if len(value) <= shortSecret {
			continue
		}
		quoted, err := json.Marshal(value)
		if err != nil {
			continue
		}
		for _, text := range []string{
			value, strings.TrimSpace(value), base64.RawStdEncoding.EncodeToString([]byte(value)),
			string(quoted[1 : len(quoted)-1]), url.QueryEscape(value), hex.EncodeToString([]byte(value)),
		} {
			if len(text) > shortSecret {
				w.forms = append(w.forms, secretForm{key, text})
			}
		}
	}
	return w
}

// secretIn returns the key of the secret that a text shows, or "".
func (w *witness) secretIn(text string) string {
	for _, f := range w.forms {
		if strings.Contains(text, f.text) {
			return f.key
		}
	}
	return ""
}

// see looks at the end of a call.
func (w *witness) see(method string, reply any, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	name := path.Base(method)
	if err != nil {
		w.seeError(name, status.Convert(err))
		return
	}
	m, ok := reply.(proto.Message)
	if !ok {
		return
	}
	texts(m, func(field protoreflect.Name, text string) {
		if key := w.secretIn(text); key != "" {
			w.complain("secrets", "%s answers with the value of secret %q in %s", name, key, field)
		}
	})
	if problem := sizeProblem(m); problem != "" {
		w.complain("limits", "%s answers with %s", name, problem)
	}
}

func (w *witness) seeError(name string, s *status.Status) {
	text := s.Message()
	if key := w.secretIn(text + " " + s.Proto().String()); key != "" {
		w.complain("secrets", "%s fails with the value of secret %q in its message", name, key)
	}
	switch s.Code() {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Unimplemented:
		// These are also what this side says when the connection is lost or the call is given up.
		return
	}
	if problem := messageProblem(text); problem != "" {
		w.complain("messages", "%s fails with %s", name, problem)
	}
}

// complain keeps the first complaint of each kind, and counts the others.
func (w *witness) complain(check, format string, args ...any) {
	c := w.wrong[check]
	if c.count++; c.count == 1 {
		c.first = fmt.Sprintf(format, args...)
	}
	w.wrong[check] = c
}

// complaint returns what is wrong by a check, or "".
func (w *witness) complaint(check string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.wrong[check]
	if c.count > 1 {
		return fmt.Sprintf("%s (and so in %d more calls)", c.first, c.count-1)
	}
	return c.first
}

func (w *witness) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// Write takes what the driver prints. It never fails.
func (w *witness) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.tail, p...)
	if key := w.secretIn(string(text)); key != "" {
		w.complain("secrets", "the driver prints the value of secret %q", key)
	}
	if at := regexp.MustCompile(`(panic|fatal error): [^\n]+`).Find(text); at != nil && w.cause == "" {
		w.cause = string(at)
	}
	keep := keptWords
	for _, f := range w.forms {
		keep = max(keep, len(f.text))
	}
	w.tail = slices.Clone(text[max(0, len(text)-keep):])
	return len(p), nil
}

// lastWords returns what the driver has printed last, or why its runtime has ended it.
func (w *witness) lastWords() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	const shown = 600
	if cause := w.cause; cause != "" {
		w.cause = ""
		return strings.ToValidUTF8(cause[:min(len(cause), shown)], "?")
	}
	text := strings.ToValidUTF8(string(w.tail[max(0, len(w.tail)-shown):]), "?")
	return strings.Join(strings.Fields(text), " ")
}

// texts calls visit for each text in a message, also for the keys and values of maps.
func texts(m proto.Message, visit func(field protoreflect.Name, text string)) {
	_ = protorange.Range(m.ProtoReflect(), func(path protopath.Values) error {
		at, field := path.Index(-1), path.Index(-1).Step
		if kind := field.Kind(); kind == protopath.ListIndexStep || kind == protopath.MapIndexStep {
			field = path.Index(-2).Step
		}
		if at.Step.Kind() == protopath.MapIndexStep {
			visit(field.FieldDescriptor().Name(), at.Step.MapIndex().String())
		}
		if text, is := at.Value.Interface().(string); is {
			visit(field.FieldDescriptor().Name(), text)
		}
		return nil
	})
}

// sizeProblem returns which field of an answer is larger than CSI allows, or "".
func sizeProblem(m proto.Message) (problem string) {
	_ = protorange.Range(m.ProtoReflect(), func(path protopath.Values) error {
		at, field := path.Index(-1), path.Index(-1).Step
		if field.Kind() == protopath.ListIndexStep {
			field = path.Index(-2).Step
		}
		if field.Kind() != protopath.FieldAccessStep {
			return nil
		}
		name := field.FieldDescriptor().Name()
		if n, limit := sizeOfField(name, at.Value); n > limit {
			problem = fmt.Sprintf("a %s of %d bytes, CSI allows %d", name, n, limit)
			return protorange.Terminate
		}
		return nil
	})
	return problem
}

// sizeOfField returns the size of a map or a text and its limit.
func sizeOfField(name protoreflect.Name, v protoreflect.Value) (size, limit int) {
	switch value := v.Interface().(type) {
	case protoreflect.Map:
		value.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			size += len(k.String()) + len(v.String())
			return true
		})
		return size, maxMap
	case string:
		switch name {
		case "node_id", "published_node_ids":
			return len(value), maxNodeID
		case "message":
			return len(value), maxMessage
		}
		return len(value), maxString
	}
	return 0, 0
}

// messageProblem returns why the message of an error is of no use, or "".
func messageProblem(text string) string {
	odd := strings.IndexFunc(text, func(r rune) bool {
		return r == utf8.RuneError || !unicode.IsPrint(r) && !strings.ContainsRune("\n\t", r)
	})
	switch {
	case strings.TrimSpace(text) == "":
		return "no message"
	case len(text) > maxMessage:
		return fmt.Sprintf("a message of %d bytes", len(text))
	case odd >= 0:
		return fmt.Sprintf("a message that cannot be printed: %.60q", text[odd:])
	}
	return ""
}
