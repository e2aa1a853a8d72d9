package redact

import (
	"encoding/base64"
	"encoding/binary"
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth is how many encodings are undone one after the other: base64 in lines in JSON in JSON has four.
	maxDepth = 4
	// maxViews limits the work for one text.
	maxViews = 200
)

// view is a text after some encodings were undone, with the range in the original text from which each byte was made.
type view struct {
	text     []byte
	from, to []int
	// decoded says that the bytes of the view were decoded from digits or letters.
	decoded bool
}

func (v *view) add(from, to int, made ...byte) {
	for _, b := range made {
		v.text, v.from, v.to = append(v.text, b), append(v.from, from), append(v.to, to)
	}
}

// key is equal for views that show the same bytes from the same places: a secret that a text has in
// two encodings gives two views with the same bytes. It is empty for an empty view.
func (v view) key() string {
	key := slices.Clone(v.text)
	for i := range v.text {
		key = binary.AppendVarint(binary.AppendVarint(key, int64(v.from[i])), int64(v.to[i]))
	}
	return string(key)
}

// viewOf returns the text itself.
func viewOf(text string) view {
	n := len(text)
	v := view{text: []byte(text), from: make([]int, n), to: make([]int, n)}
	for i := range n {
		v.from[i], v.to[i] = i, i+1
	}
	return v
}

// viewsOf returns the text itself and with every encoding undone, those with the fewest steps first.
func viewsOf(text string) []view {
	first := viewOf(text)
	views, known, undoers := []view{first}, map[string]bool{first.key(): true, "": true}, undoers()
	for begin, depth := 0, 0; depth < maxDepth; depth++ {
		end := len(views)
		for _, v := range views[begin:end] {
			for _, undo := range undoers {
				next := undo(v)
				if key := next.key(); len(views) < maxViews && !known[key] {
					known[key] = true
					views = append(views, next)
				}
			}
		}
		begin = end
	}
	return views
}

func undoers() []func(view) view {
	return []func(view) view{
		replace(unescape), replace(unpercent), replace(unform), replace(unentity), replace(unquote), replace(unwrap),
		unbase64(0), unbase64(1), unbase64(2), unbase64(3), unhex(0), unhex(1), undecimal,
	}
}

// replace returns a function that undoes an encoding in which some bytes stand for others: undo
// returns what the beginning of a text stands for and its length, or 0.
func replace(undo func(s []byte) (string, int)) func(view) view {
	return func(v view) view {
		next := view{decoded: v.decoded}
		for i := 0; i < len(v.text); {
			made, n := undo(v.text[i:])
			if n == 0 {
				made, n = string(v.text[i]), 1
			}
			next.add(v.from[i], v.to[i+n-1], []byte(made)...)
			i += n
		}
		return next
	}
}

// unescape undoes backslash escapes of JSON, Go, C and shells.
func unescape(s []byte) (string, int) {
	if len(s) < 2 || s[0] != '\\' {
		return "", 0
	}
	switch s[1] {
	case 'x':
		return number(s, 2, 2, 16, false)
	case 'U':
		return number(s, 2, 8, 16, true)
	case 'u':
		if made, n := surrogates(s); n > 0 {
			return made, n
		}
		return number(s, 2, 4, 16, true)
	}
	for n := 3; n > 0; n-- {
		if made, used := number(s, 1, n, 8, false); used > 0 {
			return made, used
		}
	}
	if i := strings.IndexByte(`abfnrtv`, s[1]); i >= 0 {
		return string("\a\b\f\n\r\t\v"[i]), 2
	}
	return string(s[1]), 2
}

// number parses digits of a base at an offset, as a byte or as a character.
func number(s []byte, at, digits, base int, char bool) (string, int) {
	if len(s) < at+digits {
		return "", 0
	}
	n, err := strconv.ParseUint(string(s[at:at+digits]), base, 32)
	switch {
	case err != nil || !char && n > 255:
		return "", 0
	case char:
		return string(rune(n)), at + digits
	}
	return string([]byte{byte(n)}), at + digits
}

// surrogates parses the two halves in which JSON writes some characters.
func surrogates(s []byte) (string, int) {
	const both = len(`\ud83d\ude00`)
	if len(s) < both || s[6] != '\\' || s[7] != 'u' {
		return "", 0
	}
	high, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	low, err2 := strconv.ParseUint(string(s[8:12]), 16, 16)
	char := utf16.DecodeRune(rune(high), rune(low))
	if err != nil || err2 != nil || char == utf8.RuneError {
		return "", 0
	}
	return string(char), both
}

// unpercent undoes percent escapes of URLs.
func unpercent(s []byte) (string, int) {
	if s[0] != '%' {
		return "", 0
	}
	return number(s, 1, 2, 16, false)
}

// unform undoes the escapes of forms and queries, in which a plus stands for a space.
func unform(s []byte) (string, int) {
	if s[0] == '+' {
		return " ", 1
	}
	return unpercent(s)
}

// unentity undoes character references of HTML and XML.
func unentity(s []byte) (string, int) {
	const longest = 10
	if s[0] != '&' {
		return "", 0
	}
	end := strings.IndexByte(string(s[:min(len(s), longest)]), ';')
	if end < 0 {
		return "", 0
	}
	entity := string(s[:end+1])
	if made := html.UnescapeString(entity); made != entity {
		return made, len(entity)
	}
	return "", 0
}

// unquote undoes a shell's encoding of a quote within quotes.
func unquote(s []byte) (string, int) {
	for _, quote := range []string{`'\''`, `'"'"'`} {
		if strings.HasPrefix(string(s[:min(len(s), len(quote))]), quote) {
			return "'", len(quote)
		}
	}
	return "", 0
}

// unwrap removes blanks and line breaks, which encoders insert.
func unwrap(s []byte) (string, int) {
	if strings.IndexByte(" \t\r\n", s[0]) >= 0 {
		return "", 1
	}
	return "", 0
}

// The forms of what is decoded.
var (
	base64Word = regexp.MustCompile(`[A-Za-z0-9+/_-]{6,}={0,2}`)

	hexBytes = regexp.MustCompile(`(0x)?[0-9A-Fa-f]{2}([ :,-]{0,2}(0x[0-9A-Fa-f]{1,2}|[0-9A-Fa-f]{2})){3,}[0-9A-Fa-f]?`)
	hexByte  = regexp.MustCompile(`[0-9A-Fa-f]{1,2}`)

	decimalBytes = regexp.MustCompile(`[0-9]{1,3}([ ,]{1,2}[0-9]{1,3}){3,}`)
	decimalByte  = regexp.MustCompile(`[0-9]+`)
)

// unbase64 decodes every word as base64 of either alphabet, without its first skip letters: other
// letters may precede the encoded text.
func unbase64(skip int) func(view) view {
	return func(v view) view {
		next := view{decoded: true}
		for _, at := range base64Word.FindAllIndex(v.text, -1) {
			word := strings.TrimRight(string(v.text[at[0]+skip:at[1]]), "=")
			word = strings.NewReplacer("-", "+", "_", "/").Replace(word)
			if len(word)%4 == 1 {
				word = word[:len(word)-1]
			}
			made, err := base64.RawStdEncoding.DecodeString(word)
			if err != nil || !readable(made) {
				continue
			}
			for i, b := range made {
				// Four letters encode three bytes.
				first := at[0] + skip + i*4/3
				last := first + 1
				if i == len(made)-1 {
					last = at[1] - 1
				}
				next.add(v.from[first], v.to[last], b)
			}
			next.gap(v, at[1])
		}
		return next
	}
}

// readable says whether there are several printable characters in a row: a word that is not base64 decodes to none.
func readable(made []byte) bool {
	run := 0
	for len(made) > 0 {
		r, n := utf8.DecodeRune(made)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			run = -n
		}
		if run += n; run >= shortestLine {
			return true
		}
		made = made[n:]
	}
	return false
}

// unhex decodes hexadecimal digits, also with blanks, colons, commas or 0x between them.
func unhex(skip int) func(view) view {
	return func(v view) view {
		next := view{decoded: true}
		for _, at := range hexBytes.FindAllIndex(v.text, -1) {
			begin := at[0] + skip
			run := strings.ReplaceAll(string(v.text[begin:at[1]]), "0x", "::")
			for _, p := range hexByte.FindAllStringIndex(run, -1) {
				made, _ := number([]byte(run), p[0], p[1]-p[0], 16, false)
				next.add(v.from[begin+p[0]], v.to[begin+p[1]-1], []byte(made)...)
			}
			next.gap(v, at[1])
		}
		return next
	}
}

// undecimal decodes bytes in the form in which Go prints a slice of them.
func undecimal(v view) view {
	next := view{decoded: true}
	for _, at := range decimalBytes.FindAllIndex(v.text, -1) {
		run := v.text[at[0]:at[1]]
		for _, p := range decimalByte.FindAllIndex(run, -1) {
			if n, err := strconv.ParseUint(string(run[p[0]:p[1]]), 10, 8); err == nil {
				next.add(v.from[at[0]+p[0]], v.to[at[0]+p[1]-1], byte(n))
			}
		}
		next.gap(v, at[1])
	}
	return next
}

// gap separates what was decoded from one word from the next one.
func (v *view) gap(of view, end int) {
	v.add(of.from[end-1], of.from[end-1], 0)
}
