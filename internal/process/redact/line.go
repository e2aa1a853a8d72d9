package redact

import (
	"strings"
	"unicode"
)

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
