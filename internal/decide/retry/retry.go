package retry

import (
	"strconv"
	"time"

	"volplane.dev/volplane/internal/volume"
)

// Try is what the controller that repeats a call knows about its failure. Zero fields are unknown.
type Try struct {
	// Number counts the failures in a row, this one included.
	Number int
	// Next is when the next try begins at the latest.
	Next time.Time
	// Within is the longest pause between two tries.
	Within time.Duration
}

// Notes returns the try as annotations of the event that reports the failure.
func (t Try) Notes() map[string]string {
	notes := map[string]string{}
	if t.Number > 0 {
		notes[volume.AnnAttempt] = strconv.Itoa(t.Number)
	}
	if !t.Next.IsZero() {
		// A fraction of a second is rounded up: the next try must not begin after it.
		notes[volume.AnnNextTry] = t.Next.Add(time.Second - 1).UTC().Format(time.RFC3339)
	}
	if t.Within > 0 {
		notes[volume.AnnRetryWithin] = t.Within.String()
	}
	return notes
}

// TryOf reads the annotations of an event. A missing or malformed annotation counts as unknown.
func TryOf(annotations map[string]string) Try {
	var t Try
	if n, err := strconv.Atoi(annotations[volume.AnnAttempt]); err == nil && n > 0 {
		t.Number = n
	}
	if at, err := time.Parse(time.RFC3339, annotations[volume.AnnNextTry]); err == nil {
		t.Next = at
	}
	if d, err := time.ParseDuration(annotations[volume.AnnRetryWithin]); err == nil && d > 0 {
		t.Within = d
	}
	return t
}
