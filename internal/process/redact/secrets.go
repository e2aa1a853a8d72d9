package redact

import (
	"hash/maphash"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// Hidden replaces a secret in a text.
const Hidden = "***"

const (
	// MaxText is how many bytes of a text are searched and returned.
	MaxText = 4 << 10
	// partSize is the length, in bytes, of the parts by which a secret is found. A truncated text
	// can show fewer bytes of a secret than that. A secret shorter than a part is found as a whole.
	partSize = 8
	// shortestLine is the length of the shortest line of a multi-line secret that counts as a
	// secret by itself; "}" does not.
	shortestLine = 4
	// maxParts is how many hashes a generation has: enough for about 256 KiB of secrets.
	maxParts = 256 << 10
)

// Secrets is a set of secrets that must not be shown. The zero value hides nothing but tokens. It
// is safe for concurrent use.
type Secrets struct {
	mu sync.RWMutex
	// seed makes the hashes useless outside of this process.
	seed maphash.Seed
	// When current is full, it becomes previous, so that old secrets are forgotten and memory is bounded.
	current, previous generation
}

// generation holds the hashes of parts and of whole values, and the lengths of values shorter than a part.
type generation struct {
	parts, values map[uint64]struct{}
	short         [partSize]bool
}

// AddData adds the values of a Secret. It may be repeated.
func (s *Secrets) AddData(data map[string]string) { s.Add(slices.Collect(maps.Values(data))...) }

// Add adds values. It may be repeated; adding known values is cheap.
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
	if _, known := s.current.values[whole]; known {
		return
	}
	if s.current.values == nil || len(s.current.parts) > maxParts {
		s.previous, s.current = s.current, generation{parts: map[uint64]struct{}{}, values: map[uint64]struct{}{}}
	}
	s.current.values[whole] = struct{}{}
	s.addPart(value, 1)
	if trimmed := strings.TrimSpace(value); trimmed != value {
		s.addPart(trimmed, 1)
	}
	if strings.Contains(value, "\n") {
		// The trace of a shell shows the lines of a value one by one.
		for line := range strings.Lines(value) {
			s.addPart(strings.TrimSpace(line), shortestLine)
		}
	}
}

// addPart adds every part of a text; if the text is shorter than a part, the text itself unless it
// is shorter than least.
func (s *Secrets) addPart(text string, least int) {
	if len(text) < partSize {
		if len(text) >= least {
			s.current.short[len(text)] = true
			s.current.parts[maphash.String(s.seed, text)] = struct{}{}
		}
		return
	}
	for i := range len(text) - partSize + 1 {
		s.current.parts[maphash.String(s.seed, text[i:i+partSize])] = struct{}{}
	}
}

// bearer matches a JSON Web Token, which is always a secret; it begins as a JSON object in base64.
const bearerBegin = "eyJ"

var bearer = regexp.MustCompile(bearerBegin + `[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*)?`)

// Hide returns a text without the secrets, truncated to about MaxText bytes. A nil s hides tokens only.
func (s *Secrets) Hide(text string) string { return s.hide(text, viewsOf) }

// HidePlain is Hide for texts of this program, and is cheap: it does not decode anything.
func (s *Secrets) HidePlain(text string) string {
	return s.hide(text, func(text string) []view { return []view{viewOf(text)} })
}

func (s *Secrets) hide(text string, views func(text string) []view) string {
	if len(text) > MaxText {
		text = strings.ToValidUTF8(text[:MaxText], "") + "..."
	}
	secret := make([]bool, len(text))
	if strings.Contains(text, bearerBegin) {
		for _, at := range bearer.FindAllStringIndex(text, -1) {
			mark(secret, at[0], at[1])
		}
	}
	if s != nil {
		s.findAll(text, views, secret)
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

// findAll marks the bytes of a text that show a part of a secret.
func (s *Secrets) findAll(text string, views func(text string) []view, secret []bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.current.parts == nil {
		return
	}
	for _, v := range views(text) {
		s.find(v, secret)
	}
}

// find marks the bytes of the original text that show a part of a secret in a view of it.
func (s *Secrets) find(v view, secret []bool) {
	minLen := 1
	if v.decoded {
		// Any text decoded as base64 contains many shorter strings by chance.
		minLen = shortestLine
	}
	for n := minLen; n <= partSize; n++ {
		if n < partSize && !s.current.short[n] && !s.previous.short[n] {
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
	if _, is := s.current.parts[h]; is {
		return true
	}
	_, is := s.previous.parts[h]
	return is
}

func mark(secret []bool, from, to int) {
	for i := from; i < to; i++ {
		secret[i] = true
	}
}

// Line returns one printable line of at most that many bytes, and "..." if there is more, for any text of a driver or
// of another source: nothing in it is a command for a terminal, or changes the direction of the text after it.
func Line(s string, most int) string {
	return Bounded(strings.Join(strings.Fields(Printable(s)), " "), most)
}

// Printable replaces each character that is not part of a printable line by a blank; it keeps blanks.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
}

// Bounded truncates a text to a number of bytes, between two characters.
func Bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
