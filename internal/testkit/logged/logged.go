// Package logged keeps what is logged, for tests that read it while it is
// written.
package logged

import (
	"strings"
	"sync"
)

// Text is what was written to it so far. The zero Text is empty; it may be
// written and read by several goroutines at once, and must not be copied.
type Text struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends, and never fails.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns all that was written.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
