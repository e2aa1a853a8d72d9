package flex

import (
	"bytes"
	"encoding/json"
)

// Bounds of what is read of a driver's output.
const (
	// MaxOutput is how much of stdout and of stderr is looked at, in bytes: the
	// end of it, because an answer comes last.
	MaxOutput = 1 << 20
	// maxDepth is how deep objects and lists may lie in each other.
	maxDepth = 32
	// maxScans is how often each byte may be looked at before a search ends
	// without a result: more is an attack, not an answer.
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

// search returns the last object with a status and how many steps it took.
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

// objectLen returns the length of the object that b begins with by its braces
// and brackets, or how much was read before it was clear that there is none.
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

// tried says whether a driver seems to have meant an answer that is none.
func tried(out []byte) bool {
	return bytes.Contains(bytes.ToLower(out[max(0, len(out)-MaxOutput):]), []byte(`"status"`))
}
