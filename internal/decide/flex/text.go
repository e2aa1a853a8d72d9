package flex

import (
	"strings"
	"unicode"

	"volplane.dev/volplane/internal/redact"
)

const (
	// maxShown bounds, in bytes, what of a wrong name is shown.
	maxShown = 100
	// MaxMessage bounds, in bytes, what of a driver's words is shown.
	MaxMessage = 1 << 10
)

// Redact returns a driver's words as they may be shown: without secrets, on one
// line, and not longer than MaxMessage.
func Redact(text string, secrets *redact.Secrets) string { return plainText(secrets.Hide(text)) }

// plainText makes one printable line of any bytes.
func plainText(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, "?"))
	return bounded(strings.Join(strings.Fields(s), " "), MaxMessage)
}

// bounded cuts a text at a number of bytes, between two characters.
func bounded(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
