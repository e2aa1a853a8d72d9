package flex

import "volplane.dev/volplane/internal/process/redact"

const (
	// maxShown is how many bytes of an invalid name are shown.
	maxShown = 100
	// MaxMessage is how many bytes of a driver's text are shown.
	MaxMessage = 1 << 10
)

// Redact returns a driver's text in the form in which it may be shown: without secrets, on one
// line, and not longer than MaxMessage.
func Redact(text string, secrets *redact.Secrets) string {
	return redact.Line(secrets.Hide(text), MaxMessage)
}

// bounded truncates an invalid name to what is shown of it.
func bounded(s string) string { return redact.Bounded(s, maxShown) }
