package redact

import (
	"hash/maphash"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Hidden stands where a secret stood.
const Hidden = "***"

const (
	// MaxText bounds, in bytes, what of a text is searched and returned.
	MaxText = 4 << 10
	// partSize is the length, in bytes, of the parts by which a secret is found:
	// of a text that was cut off, fewer bytes than these may be left. A shorter
	// secret is found as a whole.
	partSize = 8
	// shortestLine is the length of the shortest line of a secret of many lines
	// that is a secret by itself; "}" is none.
	shortestLine = 4
	// maxParts bounds a generation of hashes: of some 256 KiB of secrets.
	maxParts = 256 << 10
)

// Secrets is what must not be repeated. Its zero value hides nothing but
// tokens; it is safe for concurrent use.
type Secrets struct {
	mu sync.RWMutex
	// seed makes the hashes worthless outside of this process.
	seed maphash.Seed
	// When now is full it becomes before, so that what was given long ago is
	// forgotten, and memory has a bound.
	now, before generation
}

// generation is the hashes of parts, of whole values, and the lengths of those
// values that are shorter than a part.
type generation struct {
	parts, values map[uint64]struct{}
	short         [partSize]bool
}

// Of returns Secrets that hide the values of a Secret.
func Of(data map[string]string) *Secrets {
	s := &Secrets{}
	s.AddData(data)
	return s
}

// AddData remembers the values of a Secret.
func (s *Secrets) AddData(data map[string]string) { s.Add(slices.Collect(maps.Values(data))...) }

// Add remembers values. What was given before costs next to nothing.
func (s *Secrets) Add(values ...string) {
	if len(values) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	for _, value := range values {
		s.add(value)
	}
}

func (s *Secrets) add(value string) {
	whole := maphash.String(s.seed, value)
	if _, known := s.now.values[whole]; known {
		return
	}
	if s.now.values == nil || len(s.now.parts) > maxParts {
		s.before, s.now = s.now, generation{parts: map[uint64]struct{}{}, values: map[uint64]struct{}{}}
	}
	s.now.values[whole] = struct{}{}
	s.addPart(value, 1)
	if trimmed := strings.TrimSpace(value); trimmed != value {
		s.addPart(trimmed, 1)
	}
	if strings.Contains(value, "\n") {
		// A shell shows the lines of a value one by one.
		for line := range strings.Lines(value) {
			s.addPart(strings.TrimSpace(line), shortestLine)
		}
	}
}

// addPart adds every part of a text, or the text when it is shorter than one
// and not shorter than least.
func (s *Secrets) addPart(text string, least int) {
	if len(text) < partSize {
		if len(text) >= least {
			s.now.short[len(text)] = true
			s.now.parts[maphash.String(s.seed, text)] = struct{}{}
		}
		return
	}
	for i := range len(text) - partSize + 1 {
		s.now.parts[maphash.String(s.seed, text[i:i+partSize])] = struct{}{}
	}
}

// bearer is the form of a JSON Web Token, which is a secret wherever it stands.
const bearer = `eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*)?`

// Hide returns a text without the secrets, and not longer than MaxText and a few
// bytes. A nil s hides tokens only.
func (s *Secrets) Hide(text string) string {
	if len(text) > MaxText {
		text = strings.ToValidUTF8(text[:MaxText], "") + "..."
	}
	secret := make([]bool, len(text))
	for _, at := range regexp.MustCompile(bearer).FindAllStringIndex(text, -1) {
		mark(secret, at[0], at[1])
	}
	if s != nil {
		s.findAll(text, secret)
	}
	var out strings.Builder
	for i := range len(text) {
		switch {
		case !secret[i]:
			out.WriteByte(text[i])
		case i == 0 || !secret[i-1]:
			out.WriteString(Hidden)
		}
	}
	return strings.ToValidUTF8(out.String(), "?")
}

// findAll marks what a text shows of secrets.
func (s *Secrets) findAll(text string, secret []bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.now.parts == nil {
		return
	}
	for _, v := range viewsOf(text) {
		s.find(v, secret)
	}
}

// find marks in a text what a view of it shows of secrets.
func (s *Secrets) find(v view, secret []bool) {
	least := 1
	if v.decoded {
		// Any text is full of shorter ones when it is read as base64.
		least = shortestLine
	}
	for n := least; n <= partSize; n++ {
		if n < partSize && !s.now.short[n] && !s.before.short[n] {
			continue
		}
		for i := 0; i+n <= len(v.text); i++ {
			if s.has(v.text[i : i+n]) {
				mark(secret, v.from[i], v.to[i+n-1])
			}
		}
	}
}

func (s *Secrets) has(part []byte) bool {
	h := maphash.Bytes(s.seed, part)
	if _, is := s.now.parts[h]; is {
		return true
	}
	_, is := s.before.parts[h]
	return is
}

func mark(secret []bool, from, to int) {
	for i := from; i < to; i++ {
		secret[i] = true
	}
}
