package flex

import (
	"bytes"
	"encoding/json"
)

// Limits of what is read from a driver's output.
const (
	// MaxOutput is how many bytes of stdout and of stderr are searched: the last ones, because the
	// answer comes last.
	MaxOutput = 1 << 20
	// maxDepth is the deepest nesting of objects and lists.
	maxDepth = 32
	// maxScans is how often each byte may be read before the search gives up: more is an attack,
	// not an answer.
	maxScans = 16
)

// find returns the last object with a status in the first output that has one.
func find(outputs ...[]byte) (printed, bool) {
	for _, out := range outputs {
		if p, found, _ := search(out[max(0, len(out)-MaxOutput):]); found {
			return p, true
		}
	}
	return printed{}, false
}

// search returns the last object with a status, and how many steps the search took.
func search(out []byte) (p printed, found bool, steps int) {
	for at := 0; ; {
		next := bytes.IndexByte(out[at:], '{')
		if next < 0 {
			return p, found, steps
		}
		at += next
		n, closed := objectLen(out[at:])
		if steps += n; steps > maxScans*len(out) {
			return printed{}, false, steps
		}
		var got printed
		if !closed || json.Unmarshal(out[at:at+n], &got) != nil {
			at++
			continue
		}
		if got.Status != nil && string(got.Status) != "null" {
			p, found = got, true
		}
		at += n
	}
}

// objectLen returns the length of the object at the beginning of b, by its braces and brackets. If
// there is none, it returns how much was read to find that out.
func objectLen(b []byte) (n int, closed bool) {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i, false
			}
		case c == '}' || c == ']':
			if depth--; depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(b), false
}

// looksLikeAnswer says whether an output looks like an attempt at an answer.
func looksLikeAnswer(out []byte) bool {
	return bytes.Contains(bytes.ToLower(out[max(0, len(out)-MaxOutput):]), []byte(`"status"`))
}
