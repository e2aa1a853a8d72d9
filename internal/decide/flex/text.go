package flex

import (
	"strings"
	"unicode"

	"volplane.dev/volplane/internal/redact"
)

const (
	// maxShown is how many bytes of an invalid name are shown.
	maxShown = 100
	// MaxMessage is how many bytes of a driver's text are shown.
	MaxMessage = 1 << 10
)

// Redact returns a driver's text in the form in which it may be shown: without secrets, on one
// line, and not longer than MaxMessage.
func Redact(text string, secrets *redact.Secrets) string { return plainText(secrets.Hide(text)) }

// plainText returns one printable line for any bytes.
func plainText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
	return bounded(strings.Join(strings.Fields(s), " "), MaxMessage)
}

// bounded truncates a text to a number of bytes, between two characters.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
